package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// use is one claim of one Pod, followed to its volume.
type use struct {
	decide.Use
	// pv is nil when the claim does not lead to a volume that can be mounted.
	pv *corev1.PersistentVolume
}

// key returns the volume's key, or "" when there is no volume.
func (u use) key() string {
	if u.pv == nil {
		return ""
	}
	return decide.Key(u.pv.Spec.CSI.Driver, u.pv.Spec.CSI.VolumeHandle)
}

// uses returns the claims that a Pod uses. Other kinds of volumes are not
// mounted here and not waited for.
func (a *Agent) uses(pod *corev1.Pod) []use {
	var out []use
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		u := decide.Use{Pod: pod, Name: v.Name}
		switch {
		case v.PersistentVolumeClaim != nil:
			u.ClaimName, u.ReadOnly = v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
		case v.Ephemeral != nil:
			u.ClaimName, u.Ephemeral = pod.Name+"-"+v.Name, true
		default:
			continue
		}
		out = append(out, a.follow(u))
	}
	return out
}

// follow goes from the claim's name to the volume.
func (a *Agent) follow(u decide.Use) use {
	if claim, ok := a.claims.Get(u.Pod.Namespace + "/" + u.ClaimName); ok {
		u.Claim = claim
		if pv, ok := a.volumes.Get(claim.Spec.VolumeName); ok {
			u.Volume = pv
		}
	}
	if u.Missing().Reason != "" {
		return use{Use: u}
	}
	u.ReadOnly = u.ReadOnly || u.Volume.Spec.CSI.ReadOnly
	return use{Use: u, pv: u.Volume}
}

// alive says whether a Pod still has a right to its volumes.
func alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

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

// gather collects the facts about one volume.
func (a *Agent) gather(key string) (*facts, error) {
	name, handle, _ := strings.Cut(key, "^")
	f := &facts{consumers: map[string]*corev1.Pod{}}
	f.Driver, f.Handle, f.Node, f.Volume, f.Verify = name, handle, a.Name, key, !a.TrustDrivers
	f.Record = a.journal.Get(key)
	a.gatherUses(f, key)
	a.keepRunning(f)
	slices.SortFunc(f.Wanted, func(x, y decide.Consumer) int {
		return strings.Compare(x.Namespace+"/"+x.Name+x.Path, y.Namespace+"/"+y.Name+y.Path)
	})
	f.driver, f.DriverReady = a.Drivers.Get(name)
	f.CanStage = f.DriverReady && f.driver.Node.StageUnstage
	n := uniqueName(name, handle)
	f.InUse = a.inUse.has(n)
	if len(f.Wanted) == 0 {
		f.InUse = a.inUse.mayHave(n)
	}
	f.AttachRequired, f.Attached = a.attachRequired(name), a.attached(n)
	if err := a.gatherMounts(f); err != nil {
		return nil, err
	}
	return f, nil
}

// gatherUses finds the Pods that want the volume. More than one object may
// stand for the same volume.
func (a *Agent) gatherUses(f *facts, key string) {
	for _, pv := range a.volumes.By(kube.VolumesByHandle, key) {
		if f.pv == nil {
			f.set(pv, nil)
		}
		ref := pv.Spec.ClaimRef
		if ref == nil {
			continue
		}
		for _, pod := range a.pods.By(kube.PodsByClaim, ref.Namespace+"/"+ref.Name) {
			if !alive(pod) {
				continue
			}
			for _, u := range a.uses(pod) {
				if u.pv == pv || u.pv != nil && u.pv.UID == pv.UID {
					f.want(a, u)
				}
			}
		}
	}
}

func (f *facts) set(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	f.pv, f.claim, f.Known = pv, claim, true
	f.Volume, f.Block = pv.Name, isBlock(pv)
	f.SinglePod = slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

func (f *facts) want(a *Agent, u use) {
	path := targetPath(a.RootDir, string(u.Pod.UID), u.pv.Name, isBlock(u.pv))
	if f.consumers[path] != nil {
		return
	}
	if f.claim == nil {
		f.set(u.pv, u.Claim)
		f.Facts.Grow = growTo(u.pv, u.Claim)
	}
	c := decide.Consumer{UID: string(u.Pod.UID), Namespace: u.Pod.Namespace, Name: u.Pod.Name, Path: path, ReadOnly: u.ReadOnly}
	if host, err := a.hostPath(u.Pod); err == nil {
		c.HostPath = host
	}
	f.consumers[path] = u.Pod
	f.Wanted = append(f.Wanted, c)
}

// keepRunning adds the living Pods that have the volume although no object
// leads from them to it any more: a consumer's mount is never taken away under
// it.
func (a *Agent) keepRunning(f *facts) {
	if f.Record == nil {
		return
	}
	if f.pv == nil {
		f.Volume, f.Block = f.Record.Volume, f.Record.Block
	}
	for _, t := range f.Record.Targets {
		pod, ok := a.pods.ByUID(t.PodUID)
		if !ok || !alive(pod) || f.consumers[t.Path] != nil {
			continue
		}
		f.consumers[t.Path] = pod
		f.Wanted = append(f.Wanted, decide.Consumer{
			UID: t.PodUID, Namespace: t.PodNamespace, Name: t.PodName, Path: t.Path, ReadOnly: t.ReadOnly, HostPath: t.HostPath,
		})
	}
}

// gatherMounts reads the mount table at the places that matter.
func (a *Agent) gatherMounts(f *facts) error {
	f.Mounted = map[string]bool{}
	if f.Record == nil {
		return nil
	}
	points, err := mount.Below(a.RootDir)
	if err != nil {
		return err
	}
	for _, p := range points {
		f.Mounted[p.Path] = true
	}
	for _, t := range f.Record.Targets {
		if t.HostPath == "" {
			continue
		}
		if _, f.Mounted[t.HostPath], err = mount.At(t.HostPath); err != nil {
			return err
		}
	}
	return nil
}

// attachRequired is true for a driver that has not said otherwise.
func (a *Agent) attachRequired(driver string) bool {
	d, ok := a.csiDrivers.Get(driver)
	return !ok || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

func (a *Agent) attached(n corev1.UniqueVolumeName) bool {
	node, ok := a.nodes.Get(a.Name)
	return ok && slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == n })
}

func (a *Agent) driverSpec(driver string) storagev1.CSIDriverSpec {
	if d, ok := a.csiDrivers.Get(driver); ok {
		return d.Spec
	}
	return storagev1.CSIDriverSpec{}
}

var errHostPath = errors.New("volume cannot be shown at the host path")

// hostPath returns the directory of the host that the Pod asks for, "" when it
// asks for none.
func (a *Agent) hostPath(pod *corev1.Pod) (string, error) {
	path, ok := pod.Annotations[volume.AnnMountAt]
	switch {
	case !ok:
		return "", nil
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return "", fmt.Errorf("%w: %.200q is not an absolute, clean path", errHostPath, path)
	case path == a.RootDir || strings.HasPrefix(path, a.RootDir+"/") || strings.HasPrefix(a.RootDir, path+"/"):
		return "", fmt.Errorf("%w: %s would hide the node agent's own directory", errHostPath, path)
	case len(kube.ClaimNames(pod)) != 1:
		return "", fmt.Errorf("%w: the Pod has %d volumes, exactly one can be shown at %s", errHostPath, len(kube.ClaimNames(pod)), path)
	}
	return path, nil
}
