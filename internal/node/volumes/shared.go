package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/identity"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// Options are the settings and the collaborators of Volumes.
type Options struct {
	// Root is the agent's root directory.
	Root string
	// TrustDrivers accepts a driver's answer without a check of the mount table.
	TrustDrivers bool
	Client       kubernetes.Interface
	Pods         *kube.Cache[*corev1.Pod]
	Claims       *kube.Cache[*corev1.PersistentVolumeClaim]
	Volumes      cluster.Objects[*corev1.PersistentVolume]
	Drivers      *csi.Set
	Journal      *journal.Journal
	Node         *identity.Node
	Finder       *uses.Finder
	Liveness     *mount.Liveness
	Consumers    Consumers
	Events       *kube.Recorder
	Log          *slog.Logger
	// RetryMin and RetryMax bound the back-off of a failed volume. RepublishEvery is the pause
	// between two calls for a target of a driver with requiresRepublish, PollEvery the pause between
	// two reads of an attachment that the node waits for.
	RetryMin, RetryMax, RepublishEvery, PollEvery time.Duration
	// LateMount is how long a mount may take to appear after the driver has reported success; the default is 5 s.
	LateMount time.Duration
	// FileLabel returns the label of files for a container's SELinux options; the default is the host's.
	FileLabel func(*corev1.SELinuxOptions) (string, error)
}

// Consumers are the Pods that wait for volumes.
type Consumers interface {
	// Add enqueues a Pod, by its key, because the state of one of its volumes has changed.
	Add(pod string)
	// DriverCalled says that a call of a driver for a volume of the Pod, by its key, is in flight.
	DriverCalled(pod string)
	// GiveUp fails a Pod that waits for a volume, unless it has had all its volumes.
	GiveUp(ctx context.Context, pod *corev1.Pod, why volume.Because) error
	// End deletes a Pod whose use of a volume has ended on the host.
	End(ctx context.Context, pod *corev1.Pod) error
}

// errNotYet marks a wait that is not a failure and whose end no watch reports: the volume is polled.
var errNotYet = errors.New("not yet")

// shared is what gatherer, applier and reporter work with.
type shared struct {
	Options
	table       mount.Table
	search      mount.Search
	tokens      tokens
	republishes *republishes
}

// unmountBelow unmounts everything at one of the agent's own paths and below it.
func (p *shared) unmountBelow(path string) error {
	points, err := p.table.Below(path)
	for _, at := range points {
		err = errors.Join(err, mount.Unmount(at.Path))
	}
	return err
}

// removeEmpty removes empty directories in the given order, and stops at one that is not empty.
func (p *shared) removeEmpty(paths ...string) {
	for _, path := range paths {
		if err := p.table.Remove(path); err != nil {
			p.Log.Debug("directory stays", "path", path, "err", err)
			return
		}
	}
}

// removeEmptyTarget removes a target and those empty directories above it that belong to the Pod or the volume.
func (p *shared) removeEmptyTarget(path string) {
	pods, blocks := filepath.Join(p.Root, "pods")+"/", filepath.Join(p.Root, uses.CSIDir, "volumeDevices/publish")+"/"
	paths := []string{path}
	for dir := filepath.Dir(path); strings.HasPrefix(dir, pods) ||
		strings.HasPrefix(dir, blocks); dir = filepath.Dir(dir) {
		paths = append(paths, dir)
	}
	p.removeEmpty(paths...)
}

// checkAttachError reads why a volume is not attached yet, because a node cannot watch attachments. If the attach limit
// was the cause, the driver's limit is read again, and Pods fail if the driver wants that.
func (p *shared) checkAttachError(ctx context.Context, f *facts, before volume.Because) error {
	if before.Reason != volume.ReasonWaitForAttach {
		return nil
	}
	va, err := p.attachmentOf(ctx, f)
	if err != nil || va == nil || !attach.NodeFull(va) {
		return err
	}
	p.Node.AttachLimitReached(f.Driver)
	if p.Node.Spec(f.Driver).NodeAllocatableUpdatePeriodSeconds == nil {
		return nil
	}
	return p.giveUp(ctx, f, decide.Full(f.Volume, f.Driver, f.Node, va.Status.AttachError.Message))
}

// attachmentOf reads the volume's attachment from the API; it is nil if the API shows none to this node.
func (p *shared) attachmentOf(ctx context.Context, f *facts) (*storagev1.VolumeAttachment, error) {
	va, err := p.Client.StorageV1().VolumeAttachments().Get(ctx, attach.NameOf(f.Driver, f.Handle, f.Node),
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read attachment of volume %s: %w", f.Volume, err)
	}
	return va, nil
}

// giveUp fails the Pods that wait for the volume. Pods that have it are left alone.
func (p *shared) giveUp(ctx context.Context, f *facts, b volume.Because) error {
	var failed []error
	for path, c := range f.consumers {
		if f.Record.Target(path) == nil {
			failed = append(failed, p.Consumers.GiveUp(ctx, c.pod, b))
		}
	}
	return errors.Join(failed...)
}
