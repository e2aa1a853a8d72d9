package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/volumeusers"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/doors/users"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// errNoVolume says that the volume does not exist.
var errNoVolume = errors.New("no such volume")

// claim returns the claim of a volume of that name. One that docker has removed and kept is hidden.
func (d *Door) claim(name string) (claim *corev1.PersistentVolumeClaim, exists, hidden bool) {
	c, exists := d.claims.Get(d.key(claimName(name)))
	if !exists || nameOf(c) != name {
		return nil, false, false
	}
	return c, true, c.Annotations[annHidden] != ""
}

func (d *Door) key(name string) string {
	return types.NamespacedName{Namespace: d.Namespace, Name: name}.String()
}

// usable returns the claim of a volume that may be mounted.
func (d *Door) usable(name string) (*corev1.PersistentVolumeClaim, error) {
	c, exists, hidden := d.claim(name)
	switch {
	case !exists || hidden:
		return nil, fmt.Errorf("%w: %s", errNoVolume, name)
	case cluster.IsBlock(c.Spec.VolumeMode):
		return nil, fmt.Errorf("claim %s is a block device, which is not a volume of a container engine", c.Name)
	case c.DeletionTimestamp != nil:
		return nil, fmt.Errorf("volume %s is being deleted", name)
	}
	return c, nil
}

// capabilities says whether other nodes have the same volumes, which only Swarm queries.
func (d *Door) capabilities(ctx context.Context, _ request) (answer, error) {
	scope := "local"
	nodes, err := d.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 2})
	if err == nil && len(nodes.Items) > 1 {
		scope = "global"
	}
	return answer{Capabilities: &capabilities{scope}}, nil
}

// create makes the claim of a volume, or shows a hidden one again. Its PersistentVolume is made when it is used.
func (d *Door) create(ctx context.Context, r request) (answer, error) {
	want, err := newClaim(d.Namespace, r.Name, r.Opts, func(name string) *corev1.PersistentVolumeClaim {
		c, _ := d.claims.Get(d.key(name))
		return c
	})
	if err != nil {
		return answer{}, fmt.Errorf("volume %s is not created: %w", r.Name, err)
	}
	for {
		changed := d.changed.Wait()
		c, exists := d.claims.Get(cluster.Key(want))
		switch {
		case !exists:
			_, err := d.claims.Create(ctx, want)
			if !apierrors.IsAlreadyExists(err) {
				return answer{}, err
			}
			if _, err := d.claims.Look(ctx, want.Namespace, want.Name); err != nil {
				return answer{}, err
			}
			continue
		case nameOf(c) != r.Name:
			return answer{}, fmt.Errorf("volume %s is not created: its claim would be %s, which volume %s has", r.Name, c.Name,
				nameOf(c))
		case c.DeletionTimestamp == nil:
			if err := mismatch(c, want, r.Opts); err != nil {
				return answer{}, fmt.Errorf("volume %s already exists, and %w", r.Name, err)
			}
			return answer{}, d.show(ctx, c)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answer{}, fmt.Errorf("volume %s is not created: %w", r.Name, d.goes(c))
		}
	}
}

// show makes a claim visible that was hidden.
func (d *Door) show(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	if c.Annotations[annHidden] == "" {
		return nil
	}
	return d.hide(ctx, c, nil)
}

func (d *Door) hide(ctx context.Context, c *corev1.PersistentVolumeClaim, hidden any) error {
	_, err := d.claims.Patch(ctx, c, types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid": c.UID, "annotations": map[string]any{annHidden: hidden},
	}})
	return err
}

// goes says what the deletion of a claim waits for.
func (d *Door) goes(c *corev1.PersistentVolumeClaim) error {
	return fmt.Errorf("claim %s is being deleted, and %v still keeps it; see 'volplane why pvc/%s -n %s'", c.Name,
		c.Finalizers, c.Name, c.Namespace)
}

// remove deletes the claim of a volume. What becomes of the data is up to its class.
func (d *Door) remove(ctx context.Context, r request) (answer, error) {
	c, exists, hidden := d.claim(r.Name)
	if !exists || hidden {
		return answer{}, nil
	}
	if c.Labels[volume.LabelMadeBy] != managedBy {
		return answer{}, fmt.Errorf("volume %s was not created by docker, so docker does not delete it: use 'volplane "+
			"delete pvc/%s -n %s'", r.Name, c.Name, c.Namespace)
	}
	if err := d.unused(ctx, c); err != nil {
		return answer{}, fmt.Errorf("volume %s is not deleted: %w", r.Name, err)
	}
	if c.Annotations[annRetain] != "" {
		return answer{}, d.hide(ctx, c, "true")
	}
	if err := d.claims.Delete(ctx, c, metav1.DeleteOptions{}); err != nil {
		return answer{}, err
	}
	for {
		changed := d.changed.Wait()
		now, exists := d.claims.Get(cluster.Key(c))
		if !exists || now.UID != c.UID {
			return answer{}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answer{}, d.goes(now)
		}
	}
}

// unused returns an error if a claim is in use on any node. It reads from the API server and not from the cache.
func (d *Door) unused(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	pods, err := d.client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !uses(p, c.Name) || cluster.Finished(p) || p.DeletionTimestamp != nil {
			continue
		}
		if err := d.idle(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// uses says whether a Pod uses a claim.
func uses(p *corev1.Pod, claim string) bool {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim ||
			v.Ephemeral != nil && p.Name+"-"+v.Name == claim {
			return true
		}
	}
	return false
}

// idle deletes a Pod of this door that was kept for the next try of a mount, and returns an error for any other.
func (d *Door) idle(ctx context.Context, p *corev1.Pod) error {
	inUse := fmt.Errorf("it is in use by pod %s on node %s", p.Name, cmp.Or(p.Spec.NodeName, "(none yet)"))
	if p.Labels[volume.LabelMadeBy] != managedBy || p.Spec.NodeName != d.Node {
		return inUse
	}
	if err := d.users.Settle(ctx, p, d.users.Survey(), func(r volumeusers.References) volumeusers.References {
		if r.Used() {
			return r
		}
		return volumeusers.References{}
	}); err != nil && !users.IsGone(err) {
		return err
	}
	now, exists := d.pods.Get(cluster.Key(p))
	if !exists || now.UID != p.UID || now.DeletionTimestamp != nil {
		return nil
	}
	counted, err := volumeusers.Parse(now.Annotations[annReferences])
	if err != nil || !counted.Used() {
		return errors.Join(inUse, err)
	}
	return fmt.Errorf("%w for %s: a container that died with its engine is dropped %s after its start, if nothing has "+
		"the volume mounted; 'volplane delete pod %s -n %s' does so now", inUse, counted.Counted(),
		duration.HumanDuration(d.users.Grace), now.Name, now.Namespace)
}

// path returns where a volume is mounted, or nothing.
func (d *Door) path(_ context.Context, r request) (answer, error) {
	pod, exists := d.pods.Get(d.key(podName(claimName(r.Name), d.Node)))
	if !exists {
		return answer{}, nil
	}
	path, _ := d.users.Path(pod)
	return answer{Mountpoint: path}, nil
}

// get describes a volume from the caches: engines call it before each other call.
func (d *Door) get(ctx context.Context, r request) (answer, error) {
	c, exists, hidden := d.claim(r.Name)
	if !exists || hidden || cluster.IsBlock(c.Spec.VolumeMode) {
		return answer{}, fmt.Errorf("%w: %s", errNoVolume, r.Name)
	}
	e := d.entry(c)
	e.CreatedAt, e.Status = c.CreationTimestamp.UTC().Format(time.RFC3339), d.status(ctx, c)
	return answer{Volume: &e}, nil
}

// list returns all volumes.
func (d *Door) list(context.Context, request) (answer, error) {
	all := []entry{}
	for _, c := range d.claims.List() {
		if c.Annotations[annHidden] == "" && !cluster.IsBlock(c.Spec.VolumeMode) && c.DeletionTimestamp == nil {
			all = append(all, d.entry(c))
		}
	}
	return answer{Volumes: all}, nil
}

func (d *Door) entry(c *corev1.PersistentVolumeClaim) entry {
	e := entry{Name: nameOf(c)}
	if pod, exists := d.pods.Get(d.key(podName(c.Name, d.Node))); exists {
		e.Mountpoint, _ = d.users.Path(pod)
	}
	return e
}

// status is what `docker volume inspect` shows.
func (d *Door) status(ctx context.Context, c *corev1.PersistentVolumeClaim) map[string]any {
	size := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if has, ok := c.Status.Capacity[corev1.ResourceStorage]; ok {
		size = has
	}
	s := map[string]any{
		"claim": cluster.Key(c), "class": ptr.Deref(c.Spec.StorageClassName, ""), "phase": string(c.Status.Phase),
		"size": size.String(), "pv": c.Spec.VolumeName,
	}
	if c.DeletionTimestamp != nil {
		s["phase"] = "Terminating"
	}
	pod, exists := d.pods.Get(d.key(podName(c.Name, d.Node)))
	if !exists {
		s["why"] = "no container on this node uses it"
		return s
	}
	s["node"], s["pod"] = pod.Spec.NodeName, pod.Name
	if cluster.Mounted(pod) {
		s["why"] = "it is mounted"
	} else if why := d.users.Explain(ctx, pod); why != "" {
		s["why"] = why
	}
	if c := cluster.PodCondition(pod, volume.ConditionVolumesHealthy); cluster.IsFalse(c) {
		s["health"] = c.Message + "; containers that have used it since before must be restarted"
	}
	return s
}

// undoLimit is how long a mount that has failed may take to say so.
const undoLimit = 5 * time.Second

// mount counts a container and waits until the volume is mounted.
func (d *Door) mount(ctx context.Context, r request) (answer, error) {
	claim, err := d.usable(r.Name)
	if err != nil {
		return answer{}, err
	}
	pod := doors.Pod(metav1.ObjectMeta{Name: podName(claim.Name, d.Node)}, claim.Name, d.Node)
	pod, err = d.users.Take(ctx, pod, r.ID)
	if err != nil {
		return answer{}, fmt.Errorf("volume %s is not mounted: %w", r.Name, err)
	}
	path, err := d.users.Await(ctx, pod)
	if err == nil && claim.Labels[volume.LabelMadeBy] == managedBy {
		err = d.emptied(ctx, path)
	}
	if err == nil {
		return answer{Mountpoint: path}, nil
	}
	err = d.users.Explained(context.WithoutCancel(ctx), pod, err)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if back := d.users.Fail(undo, pod, r.ID); back != nil {
		d.log.Warn("docker: a failed mount stays counted until it is unmounted everywhere", "volume", r.Name, "err", back)
	}
	return answer{}, fmt.Errorf("volume %s is not mounted: %w", r.Name, err)
}

// unmount takes a container from the users of a volume. It does not need the claim, which may have been deleted.
func (d *Door) unmount(ctx context.Context, r request) (answer, error) {
	key := types.NamespacedName{Namespace: d.Namespace, Name: podName(claimName(r.Name), d.Node)}.String()
	pod, exists := d.pods.Get(key)
	if !exists || pod.DeletionTimestamp != nil {
		return answer{}, nil
	}
	err := d.users.Settle(ctx, pod, d.users.Survey(), func(refs volumeusers.References) volumeusers.References {
		return refs.Release(r.ID, d.users.Kernel.Now())
	})
	if err != nil {
		return answer{}, fmt.Errorf("volume %s stays mounted: %w", r.Name, err)
	}
	return answer{}, nil
}

// lostFound is the directory that mkfs makes in a new ext filesystem, and fsck makes again if it needs it.
const lostFound = "lost+found"

// emptied has the volume of a claim that docker has made be as empty as a volume of docker's own driver is: docker
// copies an image's files into an empty volume only, and data bases make their files in no other.
func (d *Door) emptied(ctx context.Context, path string) error {
	ended := make(chan error, 1)
	go func() { ended <- d.empty(path) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errors.New("the filesystem does not answer")
	}
}

// emptyNew removes the directory lost+found, if there is nothing else in an ext filesystem, and nothing in it.
func emptyNew(path string) error {
	point, _, err := mount.At(path)
	if err != nil || point.ReadOnly || !strings.HasPrefix(point.Type, "ext") {
		return err
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("read the volume: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(2)
	if err != nil || len(names) != 1 || names[0] != lostFound {
		// An error is the end of the directory, or one that a container will see as well.
		return nil //nolint:nilerr // see above
	}
	err = unix.Unlinkat(int(dir.Fd()), lostFound, unix.AT_REMOVEDIR)
	for _, harmless := range []error{nil, fs.ErrNotExist, unix.ENOTEMPTY, unix.EROFS} {
		if errors.Is(err, harmless) {
			return nil
		}
	}
	return fmt.Errorf("remove %s from the new volume: %w", lostFound, err)
}
