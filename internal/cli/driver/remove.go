package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// removed waits until the processes of a driver without a file have ended, and says that it is removed.
func (h *hostDrivers) removed(ctx context.Context, name string, o removal) error {
	if o.wait > 0 {
		if err := h.awaitEnd(ctx, name, o.wait); err != nil {
			return err
		}
		// A control plane that was killed cannot have removed it.
		if err := registrar.RemoveStale(ctx, filepath.Join(filepath.Dir(h.plugins), "plugins_registry"), name); err != nil {
			return fmt.Errorf("remove registration of driver %s: %w", name, err)
		}
	}
	fmt.Fprintf(h.out, "driver/%s removed\n", name)
	return nil
}

// leftPrograms returns the programs of a driver that are known, and that no file describes. What cannot be read is
// taken for described, as the control plane does it.
func (h *hostDrivers) leftPrograms(driver string) []string {
	wanted, broken := h.files.Read()
	if broken[string(h.files)] != nil {
		return nil
	}
	kept := driverfile.Programs(wanted, broken, func(p driverfile.Process) bool { return len(p.Exec) > 0 })
	known, _ := supervise.Names(h.state) // the process that watches the directory reports that it cannot be read
	own := driverfile.ProgramsOf(driver)
	return slices.DeleteFunc(known, func(program string) bool { return kept[program] || !slices.Contains(own, program) })
}

// awaitEnd waits until all processes of a driver without a file have ended.
func (h *hostDrivers) awaitEnd(ctx context.Context, name string, limit time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tell := func(context.Context) string { return "waiting for driver/" + name + " to end: " + h.left(name) }
	err := shell.Progress(waiting, h.err, tell, func(ctx context.Context) error {
		return onChange(ctx, h.state, func() (bool, error) {
			programs := h.leftPrograms(name)
			if len(programs) == 0 {
				return true, nil
			}
			// Without a control plane or node agent, no other process does it.
			return supervise.StopAlone(ctx, h.state, programs)
		})
	})
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the file of driver %[1]s is removed, but not all of its processes have ended after %[2]s: %[3]s. "+
			"A process that stays although it is killed waits for the kernel, for example for a server that does not answer. "+
			"Repeat 'volplane driver remove %[1]s' to wait on", name, limit, h.left(name))
	}
	return fmt.Errorf("wait until driver %s has ended: %w", name, err)
}

// left says which processes of a driver live.
func (h *hostDrivers) left(name string) string {
	var out []string
	for _, program := range h.leftPrograms(name) {
		r, _ := supervise.Read(h.state, program) // without a record nothing is known about it
		living := r.Living()
		if len(living) == 0 {
			living = []string{"none that is known, but its record"}
		}
		out = append(out, program+" has "+strings.Join(living, ", "))
	}
	return strings.Join(out, "; ")
}

func removeCommand(s *shell.Shell) *cobra.Command {
	var f hostFlags
	var o removal
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Stop a CSI driver of this host, and forget it",
		Long: `Remove the file of a CSI driver of this host, and wait until its processes have
ended. Where no control plane or node agent runs that would end them, the command
does. The class that 'driver add' has made is deleted, and the CSIDriver if
volplane made it and no other node has the driver. The command may be repeated
while processes are left.

The command waits until volumes that were deleted just before are unmounted, and
until the driver has told what became of volumes that it was asked for.
Otherwise it is refused while the driver has PersistentVolumes or snapshots, or
volumes are attached to or mounted on this node, because nobody could unmount,
detach or delete them any more. With --force all of them stay as they are: mounts stay mounted, and
claims and Pods that are deleted wait until the driver is added again.`,
		Example: `  volplane driver remove csi.example.com`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: completeHosted(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return remove(cmd.Context(), s, f, args[0], o)
		},
	}
	f.register(c)
	f.registerNode(c)
	c.Flags().BoolVar(&o.force, "force", false, "remove it although it has volumes, which then stay as they are")
	c.Flags().DurationVar(&o.wait, "wait", time.Minute,
		"how long to wait until deleted volumes are unmounted, and then until its processes have ended; 0 not to wait")
	return c
}

// removal says how a driver is removed.
type removal struct {
	force bool
	wait  time.Duration
}

func remove(ctx context.Context, s *shell.Shell, f hostFlags, name string, o removal) error {
	h, err := driversOf(s, f)
	if err != nil {
		return err
	}
	if !slices.Contains(h.names(), name) {
		if len(h.leftPrograms(name)) > 0 {
			return h.removed(ctx, name, o)
		}
		// Either there is no file, or the directory cannot be read.
		if _, err := h.get(name); err != nil {
			return err
		}
	}
	if err := h.reach(ctx, s, f.node); err != nil && o.force {
		h.client, h.absent = nil, err
	} else if err != nil {
		return fmt.Errorf("find out whether driver %s has volumes: %w", name, err)
	}
	return h.remove(ctx, name, o)
}

// remove removes a driver that has a file.
func (h *hostDrivers) remove(ctx context.Context, name string, o removal) error {
	left, err := h.needed(ctx, name, o)
	if err != nil && !o.force {
		return err
	} else if err != nil {
		fmt.Fprintf(h.err, "Warning: %v\n", err)
	}
	// Without the driver's file, its class cannot be identified, so the file is read first.
	d, err := h.files.Get(name)
	if err != nil && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("driver %s: %w", name, err)
	}
	if err := h.files.Remove(name); err != nil {
		return fmt.Errorf("remove driver %s: %w", name, err)
	}
	ended := h.removed(ctx, name, o)
	if left || ctx.Err() != nil {
		return ended
	}
	// Once the file is gone, only the driver's processes show that it existed, and its objects would stay for good.
	return errors.Join(ended, h.deleteObjects(ctx, name, d.Class))
}

// needed says whether anything may need a driver, and why it must not be removed.
func (h *hostDrivers) needed(ctx context.Context, name string, o removal) (bool, error) {
	if h.client == nil {
		return true, fmt.Errorf("whether driver %s has volumes is not known: %w\nWith --force it is removed anyway; its "+
			"volumes then cannot be unmounted, detached or deleted", name, h.absent)
	}
	left, err := h.remains(ctx, name)
	if err == nil && left.passing() && !o.force && o.wait > 0 {
		left, err = h.awaitSettled(ctx, name, o.wait)
	}
	if err == nil {
		err = left.refuse(name, h.node)
	}
	return err != nil, err
}

// awaitSettled waits while nothing is left of a driver but what is about to end, and returns what is left then.
func (h *hostDrivers) awaitSettled(ctx context.Context, driver string, limit time.Duration) (remains, error) {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tell := func(context.Context) string {
		return "waiting for node/" + h.node + " to unmount the deleted volumes of driver/" + driver +
			", and for the driver's last answers"
	}
	_ = shell.Progress(waiting, h.err, tell, func(waiting context.Context) error {
		// Both watches begin before their objects are read, so that no change is missed.
		node, err := h.client.CoreV1().Nodes().Watch(waiting, metav1.SingleObject(metav1.ObjectMeta{Name: h.node}))
		if err != nil {
			return err
		}
		defer node.Stop()
		begun, err := h.client.CoreV1().ConfigMaps(metav1.NamespaceAll).Watch(waiting,
			metav1.ListOptions{LabelSelector: volume.LabelIntents})
		if err != nil {
			return err
		}
		defer begun.Stop()
		for open := true; open; {
			if left, err := h.remains(waiting, driver); err != nil || !left.passing() {
				return err
			}
			select {
			case <-waiting.Done():
				return waiting.Err()
			case _, open = <-node.ResultChan():
			case _, open = <-begun.ResultChan():
			}
		}
		return nil
	})
	return h.remains(ctx, driver)
}

// remains are what would be left without a driver, by name.
type remains struct{ volumes, snapshots, begun, attachments, mounts, pods []string }

// lasting says whether something is left that stays, and ending whether something is about to end: mounts of deleted
// volumes, and calls for volumes.
func (r remains) lasting() bool {
	return len(r.volumes)+len(r.snapshots)+len(r.attachments)+len(r.pods) > 0
}

func (r remains) ending() bool { return len(r.mounts)+len(r.begun) > 0 }

// passing says whether nothing is left but what is about to end.
func (r remains) passing() bool { return r.ending() && !r.lasting() }

// remains reads from the API what needs a driver.
func (h *hostDrivers) remains(ctx context.Context, driver string) (remains, error) {
	facts := gather.New(h.client, gather.Options{})
	if err := facts.Kept(ctx, h.node); err != nil {
		return remains{}, err
	}
	node, err := h.client.CoreV1().Nodes().Get(ctx, h.node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = &corev1.Node{}, nil
	}
	if err != nil {
		return remains{}, fmt.Errorf("get node %s: %w", h.node, err)
	}
	return remaining(driver, h.node, facts.Objects, node), nil
}

// remaining returns what needs a driver on a node, as its object n has it.
func remaining(driver, node string, o state.Objects, n *corev1.Node) (r remains) {
	ours := func(v *corev1.PersistentVolume) bool { return v.Spec.CSI != nil && v.Spec.CSI.Driver == driver }
	r.volumes = shell.Named("", state.Only(o.Volumes, ours))
	single := func(c *cluster.VolumeSnapshotContent) bool { return c.Spec.Driver == driver }
	group := func(c *groupv1.VolumeGroupSnapshotContent) bool { return c.Spec.Driver == driver }
	r.snapshots = append(shell.Named("", state.Only(o.SnapshotContents, single)),
		shell.Named("", state.Only(o.GroupContents, group))...)
	for _, in := range o.Begun {
		if in.Driver == driver && !slices.Contains(r.volumes, in.Name) {
			r.begun = append(r.begun, in.Name)
		}
	}
	here := func(a *storagev1.VolumeAttachment) bool { return a.Spec.Attacher == driver && a.Spec.NodeName == node }
	r.attachments = shell.Named("", state.Only(o.Attachments, here))
	for _, p := range o.Pods {
		inline := func(v corev1.Volume) bool { return v.CSI != nil && v.CSI.Driver == driver }
		if p.Spec.NodeName == node && slices.ContainsFunc(p.Spec.Volumes, inline) {
			r.pods = append(r.pods, p.Namespace+"/"+p.Name)
		}
	}
	for _, name := range n.Status.VolumesInUse {
		if _, handle, _ := strings.Cut(string(name), "^"); driverInUse(name) == driver {
			r.mounts = append(r.mounts, handle)
		}
	}
	return r
}

// refuse says why a driver is needed; nil if it is not.
func (r remains) refuse(driver, node string) error {
	if !r.lasting() && !r.ending() {
		return nil
	}
	var parts []string
	for _, one := range []struct {
		what string
		all  []string
	}{
		{"it has %d PersistentVolumes (%s)", r.volumes},
		{"it has %d snapshots (%s)", r.snapshots},
		{"it was asked for %d volumes and may have created them (%s)", r.begun},
		{"%d volumes are attached to node " + node + " (%s)", r.attachments},
		{"%d volumes are in use on node " + node + " (%s)", r.mounts},
		{"%d Pods on node " + node + " have inline volumes of it (%s)", r.pods},
	} {
		if len(one.all) > 0 {
			parts = append(parts, fmt.Sprintf(one.what, len(one.all), some(one.all)))
		}
	}
	return fmt.Errorf("driver %s is needed: %s. Without it nothing can unmount, detach or delete them: delete the Pods, "+
		"claims and snapshots first, or use --force to leave everything as it is until the driver is added again", driver,
		strings.Join(parts, "; "))
}

// deleteObjects deletes the class that was created with a driver, and its CSIDriver unless volplane did not
// create it or another node has the driver.
func (h *hostDrivers) deleteObjects(ctx context.Context, driver, class string) error {
	classes, drivers := h.client.StorageV1().StorageClasses(), h.client.StorageV1().CSIDrivers()
	if class != "" {
		c, err := classes.Get(ctx, class, metav1.GetOptions{})
		if err == nil && c.Provisioner == driver && c.Labels[volume.LabelMadeBy] == driverfile.MadeBy {
			err = classes.Delete(ctx, class, *metav1.NewPreconditionDeleteOptions(string(c.UID)))
			err = h.deleted("storageclass/"+class, err)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete class %s: %w", class, err)
		}
	}
	o, err := drivers.Get(ctx, driver, metav1.GetOptions{})
	if err != nil || o.Labels[volume.LabelMadeBy] != driverfile.MadeBy {
		return kube.Unless(apierrors.IsNotFound(err), err)
	}
	nodes, err := gather.Every[*storagev1.CSINode](ctx, "nodes", metav1.ListOptions{},
		h.client.StorageV1().CSINodes().List)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(nodes, func(n *storagev1.CSINode) bool { return n.Name != h.node && registers(n, driver) }) {
		return nil
	}
	return h.deleted("csidriver/"+driver, drivers.Delete(ctx, driver, *metav1.NewPreconditionDeleteOptions(string(o.UID))))
}

// deleted reports the deletion of an object.
func (h *hostDrivers) deleted(name string, err error) error {
	if err != nil {
		return kube.Unless(apierrors.IsNotFound(err), err)
	}
	fmt.Fprintf(h.out, "%s deleted\n", name)
	return nil
}
