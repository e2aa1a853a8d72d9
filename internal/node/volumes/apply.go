package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// applier carries out the actions of one plan. Each action writes its "...ing" phase to the journal
// before it has an effect. Its end is written together with the next action, or by flush, because
// repeating a finished step does no harm.
type applier struct {
	*shared
	f *facts
	// rec is the desired record.
	rec *decide.Record
	// dirty says that the journal does not have all of rec yet.
	dirty bool
	// publishContext is the attachment's metadata; set by checkAttached.
	publishContext map[string]string
	// attachment is the UID of the VolumeAttachment; set by checkAttached.
	attachment string
	// label is the SELinux label of what is mounted.
	label string
}

// callError is the error of a driver's call.
type callError struct {
	what string
	err  error
}

// Error names the call and the driver's error.
func (e *callError) Error() string { return e.what + ": " + e.err.Error() }

// Unwrap returns the driver's error.
func (e *callError) Unwrap() error { return e.err }

func wrapCall(driver, method string, err error) error {
	if err == nil {
		return nil
	}
	return &callError{what: method + " by driver " + driver, err: err}
}

// save writes the record and returns when it survives a crash.
func (d *applier) save() error {
	if err := d.Journal.Put(d.rec); err != nil {
		return err
	}
	d.dirty = false
	return nil
}

// settle writes a record whose loss would only cause repeated work: a full disk does not stop unmounts.
func (d *applier) settle() error {
	if err := d.Journal.Settle(d.rec); err != nil {
		return err
	}
	d.dirty = false
	return nil
}

func (d *applier) flush() error {
	if !d.dirty {
		return nil
	}
	return d.settle()
}

// record returns the record, and creates it if there is none.
func (d *applier) record() *decide.Record {
	d.rec = cmp.Or(d.rec, &decide.Record{Driver: d.f.Driver, Handle: d.f.Handle})
	if d.rec.Empty() {
		d.rec.Volume, d.rec.Block, d.rec.Ephemeral = d.f.Volume, d.f.Block, d.f.Ephemeral
	}
	return d.rec
}

func (d *applier) drop() error {
	d.rec, d.dirty = nil, false
	return d.Journal.Drop(volume.Key(d.f.Driver, d.f.Handle))
}

// checkAttached reads from the API, not from a cache, that the volume is attached and not being detached, and keeps the
// attachment's metadata. volumesInUse was confirmed before, so a detach that starts now sees the entry and waits.
func (d *applier) checkAttached(ctx context.Context) error {
	f := d.f
	m := attach.Mount{
		Driver: f.Driver, Handle: f.Handle, Volume: f.Volume, Node: f.Node,
		Listed: d.Node.Attached(uses.UniqueName(f.Driver, f.Handle)), NodeID: d.Node.IDOf(f.Driver),
	}
	if m.Listed {
		var err error
		if m.Attachment, err = d.attachmentOf(ctx, f); err != nil {
			return err
		}
	}
	switch problem, wait := m.Problem(); {
	case wait:
		return fmt.Errorf("%s: %w", problem, errNotYet)
	case problem != "":
		return errors.New(problem)
	case m.UnderOtherID() && d.rec.Empty():
		return fmt.Errorf("volume %s: %w: it was attached to %.200q, and driver %s calls node %s %.200q now", f.Volume,
			errOtherID, m.Attachment.Annotations[volume.AnnNodeID], f.Driver, f.Node, m.NodeID)
	}
	d.publishContext, d.attachment = m.Attachment.Status.AttachmentMetadata, string(m.Attachment.UID)
	return d.checkNotStale()
}

var errOtherID = errors.New("it is attached under another id of the node")

// checkNotStale fails while mounts of an earlier attachment are left. It makes their staging end before the volume is
// used through this one.
func (d *applier) checkNotStale() error {
	stale, unstage := decide.Stale(d.rec, d.attachment, d.f.Wanted)
	if !stale {
		return nil
	}
	if unstage {
		d.rec.Stage, d.rec.UnstageRefused = decide.Unstaging, false
		if err := d.settle(); err != nil {
			return err
		}
	}
	return fmt.Errorf("volume %s was detached from node %s and attached again, its mounts are outdated: %w",
		d.f.Volume, d.f.Node, errNotYet)
}

var errNoObject = errors.New("its PersistentVolume is gone")

// prepare writes into the record what the driver's calls need from a PersistentVolume, and returns its capability. Like
// a kubelet, it uses the first access mode.
func (d *applier) prepare(pv *corev1.PersistentVolume) (*decide.Record, *csipb.VolumeCapability, error) {
	switch {
	case pv == nil:
		return nil, nil, fmt.Errorf("volume %s: %w", d.f.Volume, errNoObject)
	case len(pv.Spec.AccessModes) == 0:
		return nil, nil, fmt.Errorf("volume %s has no access mode", pv.Name)
	}
	r := d.record()
	mode, err := csi.AccessMode(pv.Spec.AccessModes[:1], d.f.driver.Node.SingleNodeMultiWriter)
	if err != nil {
		return nil, nil, fmt.Errorf("volume %s: %w", pv.Name, err)
	}
	if d.f.AttachRequired {
		r.PublishContext = d.publishContext
	}
	if d.attachment != "" {
		r.Attachment = d.attachment
	}
	r.AddSecrets(pv)
	r.Label, r.LabelUnknown = d.label, false
	options := decide.WithLabel(pv.Spec.MountOptions, d.label)
	return r, csi.Capability(mode, d.f.Block, pv.Spec.CSI.FSType, options), nil
}

var errMountedElsewhere = errors.New("it is mounted by another program")

var errSecret = errors.New("the secret cannot be used")

// secrets reads a volume's Secret from the API, because a node may not watch Secrets.
func (d *applier) secrets(ctx context.Context, pv string, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	data, err := kube.SecretData(ctx, d.Client, ref)
	if apierrors.IsNotFound(err) || errors.Is(err, kube.ErrNotText) {
		err = fmt.Errorf("%w: %w", errSecret, err)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", pv, err)
	}
	return data, nil
}

func (d *applier) stage(ctx context.Context) error {
	pv := d.f.pv
	r, capability, err := d.prepare(pv)
	if err != nil {
		return err
	}
	secrets, err := d.secrets(ctx, pv.Name, pv.Spec.CSI.NodeStageSecretRef)
	if err != nil {
		return err
	}
	before := r.Stage
	if before == "" {
		r.Volume = pv.Name
		r.StagingPath = uses.StagingPath(d.Root, r.Driver, r.Handle, r.Volume, r.Block)
		if err := d.checkStagingFree(r.StagingPath); err != nil {
			return err
		}
	}
	r.Stage, r.UnstageRefused, r.ExpandRefused = decide.Staging, false, 0
	if err := d.save(); err != nil {
		r.Stage = before
		return err
	}
	if err := mount.MakeBelow(d.Root, r.StagingPath); err != nil {
		// The driver was not called.
		r.Stage, d.dirty = before, true
		return fmt.Errorf("create staging directory: %w", err)
	}
	if group := d.f.mountGroup(nil); group != "" && capability.GetMount() != nil {
		capability.GetMount().VolumeMountGroup = group
	}
	_, err = d.f.driver.NodeClient().NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: r.Handle, PublishContext: r.PublishContext, StagingTargetPath: r.StagingPath,
		VolumeCapability: capability, Secrets: secrets, VolumeContext: pv.Spec.CSI.VolumeAttributes,
	})
	d.dirty = true
	r.Stage = d.phaseAfterCall(decide.Stage, before, r.StagingPath, err)
	switch {
	case err == nil:
		var at mount.Point
		if at, r.StagingMounted, err = d.table.Look(r.StagingPath); r.StagingMounted {
			r.Filesystem = at.Filesystem()
			r.Short = isShort(d.f.claim(), pv, at)
		}
		return err
	case r.Stage == "":
		d.removeEmpty(r.StagingPath, filepath.Dir(r.StagingPath))
	}
	return wrapCall(d.f.Driver, "NodeStageVolume", err)
}

// checkStagingFree refuses a staging path where something is mounted: a driver would mistake it for the volume, or hide
// it. Files that a driver has left in the directory do not matter.
func (d *applier) checkStagingFree(path string) error {
	at, mounted, err := d.table.At(path)
	if err == nil && mounted {
		err = fmt.Errorf("staging path of volume %s: %s: %w: %s", d.f.Volume, path, mount.ErrOccupied, at.Source)
	}
	return err
}

// observe returns what is mounted at a path after a call. It looks for a block device only where nothing is mounted,
// because a mounted filesystem may not answer.
func (d *applier) observe(path string, block bool) (decide.Observed, error) {
	mounted, err := d.table.Mounted(path)
	return decide.Observed{
		Mounted: mounted, Device: block && !mounted && err == nil && mount.IsDevice(path), Unreadable: err != nil,
		Dead: d.f.Dead[path],
	}, err
}

// phaseAfterCall returns the phase of a path after a call that returned err.
func (d *applier) phaseAfterCall(v decide.Verb, before decide.Phase, path string, err error) decide.Phase {
	var seen decide.Observed
	if err != nil {
		seen, _ = d.observe(path, true)
	}
	return decide.PhaseAfterCall(v, before, csi.AnswerOf(err), seen)
}

func (d *applier) unstage(ctx context.Context) error {
	r := d.rec
	if err := d.checkNotMountedElsewhere(); err != nil {
		return err
	}
	r.Stage, r.UnstageRefused = decide.Unstaging, false
	if err := d.settle(); err != nil {
		return err
	}
	var err error
	if d.f.CanStage {
		_, err = d.f.driver.NodeClient().NodeUnstageVolume(ctx,
			&csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: r.StagingPath})
		r.UnstageRefused, d.dirty = decide.UnstageRefused(csi.AnswerOf(err)), true
	} else {
		// A driver without STAGE_UNSTAGE_VOLUME may not be called for that, and nothing else removes what it staged when it
		// still had the capability.
		d.Log.Warn("the driver no longer stages volumes, what it has staged is unmounted without it", "driver", d.f.Driver,
			"volume", d.f.Volume, "path", r.StagingPath)
	}
	if err := d.verifyRemoved(r.StagingPath, wrapCall(d.f.Driver, "NodeUnstageVolume", err)); err != nil {
		return err
	}
	d.removeEmpty(r.StagingPath, filepath.Dir(r.StagingPath))
	r.Stage, r.UnstageRefused, r.StagingMounted, r.Filesystem, d.dirty = "", false, false, "", true
	return nil
}

// checkNotMountedElsewhere refuses to unstage a volume that will be detached while it is mounted at another path: what
// is written there would be lost. Like a kubelet, it looks for mounts of the same filesystem; if the volume is a whole
// device, for mounts of any directory in it.
func (d *applier) checkNotMountedElsewhere() error {
	points, err := d.table.Points()
	if err != nil {
		return err
	}
	staged, mounted := points[d.rec.StagingPath]
	if !mounted || !d.f.Verify || !d.f.AttachRequired || d.f.Dead[d.rec.StagingPath] {
		return nil
	}
	whole := staged.Root == "/" && !strings.HasPrefix(staged.Device, "0:")
	for _, p := range points {
		if p.Device == staged.Device && (whole || p.Root == staged.Root) && !uses.IsAgentPath(p.Path) {
			return fmt.Errorf("volume %s: %w at %s", d.f.Volume, errMountedElsewhere, p.Path)
		}
	}
	return nil
}

// verifyRemoved checks that a mount is gone after the driver was called to remove it. A mount that a
// driver leaves behind although it reports success is unmounted here.
func (d *applier) verifyRemoved(path string, err error) error {
	if !d.f.Verify {
		return err
	}
	seen, unreadable := d.observe(path, d.rec.Block)
	switch decide.Removed(csi.AnswerOf(err), seen) {
	case decide.Gone:
		return nil
	case decide.DetachDead:
		return errors.Join(err, mount.Detach(path))
	case decide.Unverified:
		return unreadable
	case decide.UnmountRest:
		d.Log.Warn("driver left a mount behind", "driver", d.f.Driver, "volume", d.f.Volume, "path", path)
		return d.unmountBelow(path)
	case decide.Remains:
	}
	return err
}

// failure is an action that failed.
type failure struct {
	action decide.Action
	err    error
}

func (d *applier) do(ctx context.Context, action decide.Action) error {
	switch action.Verb {
	case decide.MarkInUse, decide.UnmarkInUse:
		return d.Node.Marks.Set(ctx, uses.UniqueName(d.f.Driver, d.f.Handle), action.Verb == decide.MarkInUse)
	case decide.CheckAttached:
		return d.checkAttached(ctx)
	case decide.Stage:
		return d.stage(ctx)
	case decide.Publish:
		return d.publish(ctx, action.Path)
	case decide.Bind:
		return d.bind(action.Path)
	case decide.EndUse:
		return d.Consumers.End(ctx, d.f.consumers[action.Path].pod)
	case decide.Republish:
		return d.republish(ctx, action.Path)
	case decide.Expand:
		return d.grow(ctx, action.Path)
	case decide.Unbind, decide.Unpublish, decide.Unstage:
		return d.remove(ctx, action)
	case decide.Drop:
		return d.drop()
	default:
		return fmt.Errorf("unknown action %q", action.Verb)
	}
}

// remove carries out an action that unmounts something, unless unmounts are on hold.
func (d *applier) remove(ctx context.Context, action decide.Action) error {
	if err := d.Node.Hold(ctx); err != nil {
		return err
	}
	switch action.Verb {
	case decide.Unbind:
		return d.unbind(action.Path)
	case decide.Unpublish:
		return d.unpublish(ctx, action.Path)
	default:
		return d.unstage(ctx)
	}
}

// republishes schedules the repeated calls of drivers with requiresRepublish.
type republishes struct {
	// every is the pause between two calls for a target.
	every time.Duration
	// required says whether a driver has requiresRepublish.
	required func(driver string) bool

	mu sync.Mutex
	// last is the time of the last call, by target path.
	last map[string]time.Time
}

// due says whether it is time to call a driver again for a target. It is after each start of the agent.
func (r *republishes) due(driver, path string) bool {
	if !r.required(driver) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last[path]) >= r.every
}

// done records a call for a target.
func (r *republishes) done(driver, path string) {
	if !r.required(driver) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[path] = time.Now()
}

func (r *republishes) forget(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, path)
}

// next returns the time until the next call of a driver; 0 means never.
func (r *republishes) next(driver string) time.Duration {
	if !r.required(driver) {
		return 0
	}
	return r.every
}
