package volumes

import (
	"context"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// facts are what one look at a volume found.
type facts struct {
	decide.Facts
	driver *csi.Driver
	// pv and claim are nil when they are gone.
	pv    *corev1.PersistentVolume
	claim *corev1.PersistentVolumeClaim
	// consumers are the living Pods, by target path.
	consumers map[string]*corev1.Pod
}

// gatherer finds the facts about volumes.
type gatherer struct{ *parts }

// gather collects the facts about one volume.
func (g gatherer) gather(ctx context.Context, key string) (*facts, error) {
	name, handle, _ := strings.Cut(key, "^")
	f := &facts{consumers: map[string]*corev1.Pod{}}
	f.Driver, f.Handle, f.Node, f.Volume, f.Verify = name, handle, g.Node.Name, key, !g.TrustDrivers
	f.Record = g.Journal.Get(key)
	g.gatherUses(f, key)
	g.gatherInline(f, key)
	g.keepRunning(f)
	slices.SortFunc(f.Wanted, func(x, y decide.Consumer) int {
		return strings.Compare(x.Namespace+"/"+x.Name+x.Path, y.Namespace+"/"+y.Name+y.Path)
	})
	f.driver, f.DriverReady = g.Drivers.Get(name)
	f.CanStage = f.DriverReady && f.driver.Node.StageUnstage
	if !f.DriverReady {
		f.Absent = g.absent(f)
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

// gatherUses finds the Pods that want the volume. More than one object may
// stand for the same volume.
func (g gatherer) gatherUses(f *facts, key string) {
	for _, pv := range g.Volumes.By(cluster.VolumesByHandle, key) {
		if f.pv == nil {
			f.set(pv, nil)
		}
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
					g.want(f, u)
				}
			}
		}
	}
}

// gatherInline finds the Pod that names the volume itself.
func (g gatherer) gatherInline(f *facts, key string) {
	if !strings.HasPrefix(f.Handle, uses.InlinePrefix) || f.pv != nil {
		return
	}
	for _, pod := range g.Pods.List() {
		if !uses.Alive(pod) {
			continue
		}
		for _, u := range g.Finder.Of(pod) {
			if u.Inline && u.Key() == key {
				g.want(f, u)
			}
		}
	}
}

func (f *facts) set(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	f.pv, f.claim, f.Known = pv, claim, true
	f.Volume, f.Block = pv.Name, uses.IsBlock(pv)
	f.SinglePod = slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

func (g gatherer) want(f *facts, u uses.Use) {
	path := uses.TargetPath(g.Root, string(u.Pod.UID), u.PV.Name, uses.IsBlock(u.PV))
	if f.consumers[path] != nil {
		return
	}
	if f.claim == nil {
		f.set(u.PV, u.Claim)
		f.Ephemeral = u.Inline
	}
	if u.Claim != nil && f.claim == u.Claim {
		f.Facts.Grow = growTo(u.PV, u.Claim)
	}
	c := decide.Consumer{
		UID: string(u.Pod.UID), Namespace: u.Pod.Namespace, Name: u.Pod.Name, Path: path, ReadOnly: u.ReadOnly,
		Due: g.republishes.due(f.Driver, path),
	}
	if host, allowed, err := g.Finder.HostPath(u.Pod); err == nil {
		c.HostPath, c.Allowed = host, allowed
	}
	f.consumers[path] = u.Pod
	f.Wanted = append(f.Wanted, c)
}

// keepRunning adds the living Pods that have the volume although no object
// leads from them to it any more: a consumer's mount is never taken away under
// it.
func (g gatherer) keepRunning(f *facts) {
	if f.Record == nil {
		return
	}
	if f.pv == nil {
		f.Volume, f.Block, f.Ephemeral = f.Record.Volume, f.Record.Block, f.Record.Ephemeral
	}
	for _, t := range f.Record.Targets {
		pod, ok := g.Pods.ByUID(t.PodUID)
		if !ok || !uses.Alive(pod) || f.consumers[t.Path] != nil {
			continue
		}
		f.consumers[t.Path] = pod
		f.Wanted = append(f.Wanted, decide.Consumer{
			UID: t.PodUID, Namespace: t.PodNamespace, Name: t.PodName, Path: t.Path, ReadOnly: t.ReadOnly, HostPath: t.HostPath,
		})
	}
}

// gatherMounts reads the mount table at the places that matter.
func (g gatherer) gatherMounts(ctx context.Context, f *facts) error {
	f.Mounted, f.Dead = map[string]bool{}, map[string]bool{}
	if f.Record == nil {
		return nil
	}
	points, err := g.table.Points()
	if err != nil {
		return err
	}
	shown := func(path string) bool {
		p, mounted := points[path]
		return mounted && !p.Hidden
	}
	if f.Mounted[f.Record.StagingPath] = shown(f.Record.StagingPath); f.Mounted[f.Record.StagingPath] {
		f.Dead[f.Record.StagingPath] = g.Liveness.Dead(ctx, f.Record.StagingPath)
	}
	for _, t := range f.Record.Targets {
		if f.Record.Block {
			f.Mounted[t.Path] = mount.IsDevice(t.Path) && g.linked(f.Record.Volume, t)
			continue
		}
		for _, path := range []string{t.Path, t.HostPath} {
			if path == "" || !shown(path) {
				continue
			}
			if f.Mounted[path], f.Dead[path], err = g.whole(ctx, path, t.Mounts); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole says whether as much is mounted at a path and below it as was, and whether
// any of it is dead.
func (g gatherer) whole(ctx context.Context, path string, was int) (whole, dead bool, err error) {
	points, err := g.table.Below(path)
	for _, p := range points {
		dead = dead || g.Liveness.Dead(ctx, p.Path)
	}
	return len(points) >= was, dead, err
}

// linked says whether the Pod sees its device.
func (g gatherer) linked(pv string, t decide.Target) bool {
	at, err := os.Readlink(uses.DeviceLink(g.Root, t.PodUID, pv))
	return err == nil && at == t.Path
}

// attachRequired is true for a driver that has not said otherwise.
func (g gatherer) attachRequired(driver string) bool {
	return ptr.Deref(g.Node.Spec(driver).AttachRequired, true)
}

// absent says why a driver of a host of drivers is not there.
func (g gatherer) absent(f *facts) volume.Because {
	n, ok := g.Node.Object()
	if _, noted := note.Of(n)[f.Driver]; !ok || !noted && !note.Hosted(f.pv) {
		return volume.Because{}
	}
	return note.Absent(f.Driver, n)
}

// refusedMode says why a driver does not do volumes that live as long as they
// shall; empty when it does.
func (g gatherer) refusedMode(driver string, ephemeral bool) string {
	d, known := g.Node.CSIDrivers.Get(driver)
	if !known {
		return decide.Lifecycle(driver, false, nil, ephemeral)
	}
	return decide.Lifecycle(driver, true, d.Spec.VolumeLifecycleModes, ephemeral)
}

// growTo returns the size that the node has to grow the volume to, 0 when it
// is not the node's turn.
func growTo(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) int64 {
	turn := false
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		turn = true
	case "":
		for _, c := range claim.Status.Conditions {
			turn = turn || c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
		}
	}
	if !turn {
		return 0
	}
	size, promised := pv.Spec.Capacity[corev1.ResourceStorage], claim.Status.AllocatedResources[corev1.ResourceStorage]
	if size.Cmp(promised) < 0 {
		// The volume was written before the claim and is only not seen yet: what
		// is known of its size would be taken for the end of the resize.
		return 0
	}
	return size.Value()
}
