package volumes

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/driverstatus"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// facts are the facts of one decision, with the objects that its actions need.
type facts struct {
	decide.Facts
	driver *csi.Driver
	// objects are the PersistentVolumes that have the handle.
	objects []*corev1.PersistentVolume
	// pv is the PersistentVolume with which the volume is staged, or would be; nil if it is gone.
	pv *corev1.PersistentVolume
	// consumers are the Pods that may use the volume, by target path.
	consumers map[string]consumer
	// differs are the paths at which the mount table differs from the journal.
	differs []string
}

// consumer is a Pod that may use the volume, with its objects.
type consumer struct {
	pod *corev1.Pod
	// pv is nil if it is gone, claim is nil if the volume is inline.
	pv    *corev1.PersistentVolume
	claim *corev1.PersistentVolumeClaim
}

// gatherer reads the facts about volumes.
type gatherer struct{ *shared }

// gather returns the facts about a volume, by its key.
func (g gatherer) gather(ctx context.Context, key string) (*facts, error) {
	name, handle, _ := strings.Cut(key, "^")
	f := &facts{consumers: map[string]consumer{}}
	f.Driver, f.Handle, f.Node, f.Volume, f.Verify = name, handle, g.Node.Name, key, !g.TrustDrivers
	f.Record = g.Journal.Get(key)
	f.driver, f.DriverReady = g.Drivers.Get(name)
	f.CanStage = f.DriverReady && f.driver.Node.StageUnstage
	g.gatherUses(f, key)
	g.gatherInline(f, key)
	g.gatherRunning(f)
	slices.SortFunc(f.Wanted, func(x, y decide.Consumer) int {
		return strings.Compare(x.Namespace+"/"+x.Name+x.Path, y.Namespace+"/"+y.Name+y.Path)
	})
	f.settle()
	if !f.DriverReady {
		f.Absent = g.driverAbsent(f)
	}
	n := uses.UniqueName(name, handle)
	f.InUse = g.Node.Marks.Has(n)
	if len(f.Wanted) == 0 {
		f.InUse = g.Node.Marks.MayHave(n)
	}
	f.AttachRequired, f.Attached = g.attachRequired(name), g.Node.Attached(n)
	f.Refused = g.refusedMode(name, f.Ephemeral)
	if err := g.gatherMounts(ctx, f); err != nil {
		return nil, err
	}
	return f, nil
}

// gatherUses adds the Pods that want the volume through a claim. Several PersistentVolumes may have the same handle.
func (g gatherer) gatherUses(f *facts, key string) {
	f.objects = g.Volumes.By(cluster.VolumesByHandle, key)
	f.SinglePod = slices.ContainsFunc(f.objects, singlePod)
	for _, pv := range f.objects {
		ref := pv.Spec.ClaimRef
		if ref == nil {
			continue
		}
		for _, pod := range g.Pods.By(cluster.PodsByClaim, ref.Namespace+"/"+ref.Name) {
			if !uses.Alive(pod) {
				continue
			}
			for _, u := range g.Finder.Of(pod) {
				if u.PV == pv || u.PV != nil && u.PV.UID == pv.UID {
					g.addConsumer(f, u)
				}
			}
		}
	}
}

// gatherInline adds the Pod that defines the volume inline.
func (g gatherer) gatherInline(f *facts, key string) {
	if !strings.HasPrefix(f.Handle, uses.InlineHandlePrefix) || len(f.objects) > 0 {
		return
	}
	for _, pod := range g.Pods.List() {
		if !uses.Alive(pod) {
			continue
		}
		for _, u := range g.Finder.Of(pod) {
			if u.Inline && u.Key() == key {
				g.addConsumer(f, u)
			}
		}
	}
}

// subject returns what the driver's call of an action is about.
func (f *facts) subject(a decide.Action) csi.Subject {
	s := csi.Subject{Volume: f.Volume, Node: f.Node}
	if a.Path != "" {
		s.Volume = uses.VolumeAt(a.Path)
	}
	if pv := f.object(a.Path); pv != nil {
		s.Claim = cluster.ClaimOf(pv)
	}
	if pod := f.consumers[a.Path].pod; pod != nil {
		s.Object = "pod/" + cluster.Key(pod)
	} else if t := f.Record.Target(a.Path); t != nil {
		s.Object = "pod/" + t.PodNamespace + "/" + t.PodName
	}
	return s
}

// object returns the PersistentVolume with which the volume is published at a path, or with which it is staged if the
// path is empty; nil if it is gone.
func (f *facts) object(path string) *corev1.PersistentVolume {
	if path == "" {
		return f.pv
	}
	for _, pv := range f.objects {
		if pv.Name == uses.VolumeAt(path) {
			return pv
		}
	}
	return nil
}

// settle chooses the PersistentVolume with which the volume is staged, and sets Apart for the Pods that cannot use that
// staging.
func (f *facts) settle() {
	mounted := !f.Record.Empty()
	if f.Record != nil {
		f.Volume, f.Block = cmp.Or(f.Record.Volume, f.Volume), f.Record.Block
		f.Ephemeral = f.Ephemeral || f.Record.Ephemeral
	}
	switch f.pv = f.choose(mounted); {
	case f.pv == nil:
	case mounted:
		f.Volume = f.pv.Name
	default:
		f.Volume, f.Block = f.pv.Name, uses.IsBlock(f.pv)
	}
	f.Known = f.pv != nil || len(f.objects) > 0
	for i, c := range f.Wanted {
		if pv := f.consumers[c.Path].pv; pv != nil && f.apart(pv) {
			f.Wanted[i].Apart = f.Volume
		}
	}
}

// choose returns the PersistentVolume with which the volume was mounted. If that is gone, any through which a Pod has
// the volume will do; if nothing is mounted, that of the first Pod that may have the volume.
func (f *facts) choose(mounted bool) *corev1.PersistentVolume {
	for _, pv := range f.objects {
		if mounted && pv.Name == f.Record.Volume {
			return pv
		}
	}
	for _, c := range f.Wanted {
		may := c.Refused == ""
		if mounted {
			may = f.Record.Target(c.Path) != nil
		}
		if pv := f.consumers[c.Path].pv; pv != nil && may {
			return pv
		}
	}
	if !mounted && len(f.objects) > 0 {
		return f.objects[0]
	}
	return nil
}

// apart says that the Pods of an object cannot have the volume while it is staged with the chosen one. Without staging,
// the volume is published to each Pod with its own object.
func (f *facts) apart(pv *corev1.PersistentVolume) bool {
	staged := f.CanStage || f.Record != nil && f.Record.Stage != ""
	switch {
	case pv.Name == f.Volume:
		return false
	case uses.IsBlock(pv) != f.Block:
		return true
	}
	return staged && (f.pv == nil || !decide.OneStage(pv, f.pv))
}

// claim returns the claim through which Pods use the PersistentVolume with which the volume is staged, or nil.
func (f *facts) claim() *corev1.PersistentVolumeClaim {
	for _, c := range f.consumers {
		if c.pv != nil && c.pv.Name == f.Volume {
			return c.claim
		}
	}
	return nil
}

func singlePod(pv *corev1.PersistentVolume) bool {
	return slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

func (g gatherer) addConsumer(f *facts, u uses.Use) {
	path := uses.TargetPath(g.Root, string(u.Pod.UID), u.PV.Name, uses.IsBlock(u.PV))
	if f.consumers[path].pod != nil {
		return
	}
	f.Ephemeral = u.Inline
	c := decide.Consumer{
		UID: string(u.Pod.UID), Namespace: u.Pod.Namespace, Name: u.Pod.Name, Path: path, Volume: u.PV.Name,
		ReadOnly: u.ReadOnly, SinglePod: singlePod(u.PV), Due: g.republishes.due(f.Driver, path),
	}
	if u.Claim != nil {
		c.Expand = growTo(u.PV, u.Claim, f.Record != nil && f.Record.Short && f.Record.Volume == u.PV.Name)
	}
	c.Label, c.Refused = g.label(f, u)
	if n, known := g.Node.Object(); known && c.Refused == "" {
		c.Refused = decide.Misplaced(u.PV, n)
	}
	if c.Refused != "" {
		c.Refused = "volume " + u.PV.Name + ": " + c.Refused
	}
	if host, options, err := g.Finder.HostPath(u.Pod); err == nil {
		c.HostPath, c.HostOptions = host, options
		c.UnmountEnds = u.Pod.Annotations[volume.AnnUnmountEnds] == "true"
	}
	f.consumers[path] = consumer{u.Pod, u.PV, u.Claim}
	f.Wanted = append(f.Wanted, c)
}

// label returns the SELinux label that a Pod requests for the mount of its volume, or why the request cannot be met. A
// Pod may have a volume under several names.
func (g gatherer) label(f *facts, u uses.Use) (label, refused string) {
	if u.Inline || uses.IsBlock(u.PV) || !ptr.Deref(g.Node.Spec(f.Driver).SELinuxMount, false) || decide.Relabels(u.Pod) {
		return "", ""
	}
	var names, labels []string
	for _, other := range g.Finder.Of(u.Pod) {
		if other.PV != nil && other.PV.UID == u.PV.UID {
			names = append(names, other.Name)
		}
	}
	for _, o := range decide.SELinuxOptions(u.Pod, names) {
		one, err := g.FileLabel(o)
		if err != nil {
			return "", describe(err)
		}
		labels = append(labels, one)
	}
	return decide.Label(labels)
}

// gatherRunning adds the running Pods for which the volume is published, although no object connects them with it any
// more: a volume is never unmounted while its Pod may run.
func (g gatherer) gatherRunning(f *facts) {
	if f.Record == nil {
		return
	}
	for _, t := range f.Record.Targets {
		pod, ok := g.Pods.ByUID(t.PodUID)
		if !ok || !uses.Alive(pod) || f.consumers[t.Path].pod != nil {
			continue
		}
		f.consumers[t.Path] = consumer{pod: pod}
		f.Wanted = append(f.Wanted, decide.Consumer{
			UID: t.PodUID, Namespace: t.PodNamespace, Name: t.PodName, Path: t.Path, Volume: uses.VolumeAt(t.Path),
			ReadOnly: t.ReadOnly, HostPath: t.HostPath,
		})
	}
}

// gatherMounts reads what is mounted at the paths of the record.
func (g gatherer) gatherMounts(ctx context.Context, f *facts) error {
	f.Mounted, f.Dead, f.Bare = map[string]bool{}, map[string]bool{}, map[string]bool{}
	f.Covered = map[string]string{}
	if f.Record == nil {
		return nil
	}
	table, err := g.tableOf(f.Record)
	if err != nil {
		return err
	}
	for _, p := range placesOf(f.Record) {
		switch covered := mount.CoveredBy(table.At, p.path, p.own); {
		case covered != "":
			f.Mounted[p.path], f.Covered[p.path] = true, covered
		case table.At[p.path].Path == "":
			f.Bare[p.path] = true
		case p.path == f.Record.StagingPath:
			f.Mounted[p.path], f.Dead[p.path] = true, g.Liveness.Dead(ctx, p.path)
		default:
			at := table.Below(p.path)
			f.Mounted[p.path] = len(at) >= p.mounts
			f.Dead[p.path] = slices.ContainsFunc(at, func(m mount.Point) bool { return g.Liveness.Dead(ctx, m.Path) })
		}
	}
	for _, t := range f.Record.Targets {
		if f.Record.Block {
			f.Mounted[t.Path] = mount.IsDevice(t.Path) && g.deviceLinked(t)
		}
	}
	f.differs = differences(f.Record, table.At)
	return nil
}

// tableOf returns the mount table, or only the part about the places of a record if that cannot access a server that
// does not respond.
func (g gatherer) tableOf(r *decide.Record) (mount.Snapshot, error) {
	if !r.Block && !strings.Contains(r.Filesystem, " /dev/") {
		return g.table.Snapshot()
	}
	var paths []string
	for _, p := range placesOf(r) {
		paths = append(paths, p.path)
	}
	return g.table.Places(paths)
}

// deviceLinked says whether the Pod's directory has the link to its block device.
func (g gatherer) deviceLinked(t decide.Target) bool {
	at, err := os.Readlink(uses.DeviceLink(g.Root, t.PodUID, uses.VolumeAt(t.Path)))
	return err == nil && at == t.Path
}

// attachRequired says whether a driver's volumes must be attached, which is the default.
func (g gatherer) attachRequired(driver string) bool {
	return ptr.Deref(g.Node.Spec(driver).AttachRequired, true)
}

// driverAbsent returns the reason that the host of a driver notes on the Node for not running it.
func (g gatherer) driverAbsent(f *facts) volume.Because {
	n, ok := g.Node.Object()
	if _, noted := driverstatus.Of(n)[f.Driver]; !ok || !noted && !driverstatus.Hosted(f.pv) {
		return volume.Because{}
	}
	return driverstatus.Absent(f.Driver, n)
}

// refusedMode says why a driver does not support the volume's lifecycle mode; empty if it does.
func (g gatherer) refusedMode(driver string, ephemeral bool) string {
	d, known := g.Node.CSIDrivers.Get(driver)
	if !known {
		return decide.Lifecycle(driver, false, nil, ephemeral)
	}
	return decide.Lifecycle(driver, true, d.Spec.VolumeLifecycleModes, ephemeral)
}

// growTo returns the size to which the node has to expand the volume; 0 if it does not have to. short says that its
// filesystem has less room than the volume.
func growTo(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, short bool) int64 {
	turn := false
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		turn = true
	case "":
		turn = short
		for _, c := range claim.Status.Conditions {
			turn = turn || c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
		}
	}
	if !turn {
		return 0
	}
	size, promised := pv.Spec.Capacity[corev1.ResourceStorage], claim.Status.AllocatedResources[corev1.ResourceStorage]
	if size.Cmp(promised) < 0 {
		// The PersistentVolume in the cache is older than the claim. With its size, the resize would
		// seem to be finished.
		return 0
	}
	return size.Value()
}
