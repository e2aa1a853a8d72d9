package volumes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

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

// deed carries out the actions of one plan. Each action writes its "...ing"
// phase to the journal before it has an effect; that it is done is written
// with the next one, or by flush: repeating a step that is done does no harm.
type deed struct {
	*parts
	f *facts
	// rec is the record as it shall be; dirty says that the journal does not
	// have all of it yet.
	rec   *decide.Record
	dirty bool
	// publishContext is what the attach gave, and attachment the UID of the
	// VolumeAttachment; set by checkAttached.
	publishContext map[string]string
	attachment     string
}

// callError is a driver's refusal or a lost call.
type callError struct {
	what string
	err  error
}

// Error tells the whole story.
func (e *callError) Error() string { return e.what + ": " + e.err.Error() }

// Unwrap returns the driver's error.
func (e *callError) Unwrap() error { return e.err }

func called(driver, method string, err error) error {
	if err == nil {
		return nil
	}
	return &callError{what: method + " by driver " + driver, err: err}
}

// save writes the record and returns when it will be found after a crash.
func (d *deed) save() error {
	if err := d.Journal.Put(d.rec); err != nil {
		return err
	}
	d.dirty = false
	return nil
}

// settle writes the record when it says less, or nothing that must be known after
// a crash: a full disk keeps nothing from being taken away.
func (d *deed) settle() error {
	if err := d.Journal.Settle(d.rec); err != nil {
		return err
	}
	d.dirty = false
	return nil
}

func (d *deed) flush() error {
	if !d.dirty {
		return nil
	}
	return d.settle()
}

// record returns the record, which it begins when there is none.
func (d *deed) record() *decide.Record {
	if d.rec == nil {
		d.rec = &decide.Record{
			Driver: d.f.Driver, Handle: d.f.Handle, Volume: d.f.Volume, Block: d.f.Block, Ephemeral: d.f.Ephemeral,
		}
	}
	return d.rec
}

func (d *deed) drop() error {
	d.rec, d.dirty = nil, false
	return d.Journal.Drop(volume.Key(d.f.Driver, d.f.Handle))
}

// checkAttached makes sure, past every cache, that the volume is attached and
// stays so, and reads what the attach gave. volumesInUse was confirmed before,
// so a detach that begins now sees the mark and waits.
func (d *deed) checkAttached(ctx context.Context) error {
	f := d.f
	m := attach.Mount{
		Driver: f.Driver, Handle: f.Handle, Volume: f.Volume, Node: f.Node,
		Listed: d.Node.Attached(uses.UniqueName(f.Driver, f.Handle)),
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
	}
	d.publishContext, d.attachment = m.Attachment.Status.AttachmentMetadata, string(m.Attachment.UID)
	return d.notStale()
}

// notStale ends what is left of an earlier attachment before anybody gets the volume by this one.
func (d *deed) notStale() error {
	stale, unstage := decide.Stale(d.rec, d.attachment, d.f.Wanted)
	if !stale {
		return nil
	}
	if unstage {
		d.rec.Stage = decide.Unstaging
		if err := d.settle(); err != nil {
			return err
		}
	}
	return fmt.Errorf("volume %s was detached from node %s and attached again, what is mounted of it is old: %w",
		d.f.Volume, d.f.Node, errNotYet)
}

// prepare fills the record with what the driver will be called with, and
// returns how the volume is used. As a kubelet does, the volume's first access
// mode is named.
func (d *deed) prepare() (*decide.Record, *csipb.VolumeCapability, error) {
	pv := d.f.pv
	if pv == nil || len(pv.Spec.AccessModes) == 0 {
		return nil, nil, fmt.Errorf("volume %s has no access mode", d.f.Volume)
	}
	r := d.record()
	mode, err := csi.AccessMode(pv.Spec.AccessModes[:1], d.f.driver.Node.SingleNodeMultiWriter)
	if err != nil {
		return nil, nil, fmt.Errorf("volume %s: %w", pv.Name, err)
	}
	r.Volume = pv.Name
	if d.f.AttachRequired {
		r.PublishContext = d.publishContext
	}
	if d.attachment != "" {
		r.Attachment = d.attachment
	}
	r.SetSecrets(pv)
	return r, csi.Capability(mode, d.f.Block, pv.Spec.CSI.FSType, pv.Spec.MountOptions), nil
}

var errElsewhere = errors.New("it is mounted by somebody else")

var errSecret = errors.New("the secret cannot be used")

// secrets reads a Secret live: the node may not watch Secrets.
func (d *deed) secrets(ctx context.Context, ref *decide.SecretRef) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	data, err := kube.SecretData(ctx, d.Client, &corev1.SecretReference{Namespace: ref.Namespace, Name: ref.Name})
	if apierrors.IsNotFound(err) || errors.Is(err, kube.ErrNotText) {
		err = fmt.Errorf("%w: %w", errSecret, err)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", d.f.Volume, err)
	}
	return data, nil
}

func (d *deed) stage(ctx context.Context) error {
	r, capability, err := d.prepare()
	if err != nil {
		return err
	}
	secrets, err := d.secrets(ctx, r.StageSecret)
	if err != nil {
		return err
	}
	before := r.Stage
	r.StagingPath = uses.StagingPath(d.Root, r.Driver, r.Handle, r.Volume, r.Block)
	if before == "" {
		if err := d.stageable(r.StagingPath); err != nil {
			return err
		}
	}
	r.Stage, r.GrowRefused = decide.Staging, 0
	if err := d.save(); err != nil {
		r.Stage = before
		return err
	}
	if err := mount.MakeBelow(d.Root, r.StagingPath); err != nil {
		// The driver was not called.
		r.Stage, d.dirty = before, true
		return fmt.Errorf("make staging directory: %w", err)
	}
	pv := d.f.pv
	if group := d.f.mountGroup(nil); group != "" && capability.GetMount() != nil {
		capability.GetMount().VolumeMountGroup = group
	}
	_, err = d.f.driver.NodeClient().NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: r.Handle, PublishContext: r.PublishContext, StagingTargetPath: r.StagingPath,
		VolumeCapability: capability, Secrets: secrets, VolumeContext: pv.Spec.CSI.VolumeAttributes,
	})
	d.dirty = true
	r.Stage = d.brought(decide.Stage, before, r.StagingPath, err)
	switch {
	case err == nil:
		_, r.StagingMounted, err = d.table.At(r.StagingPath)
		return err
	case r.Stage == "":
		d.tidy(r.StagingPath, filepath.Dir(r.StagingPath))
	}
	return called(d.f.Driver, "NodeStageVolume", err)
}

// stageable refuses a place where somebody else has mounted something: a driver
// would take it for the volume, or hide it. What a driver may have left in the
// directory is its own.
func (d *deed) stageable(path string) error {
	at, mounted, err := d.table.At(path)
	if err == nil && mounted {
		err = fmt.Errorf("staging path of volume %s: %s: %w: %s", d.f.Volume, path, mount.ErrOccupied, at.Source)
	}
	return err
}

// seen looks at what is at a path after a call, and of block devices only where nothing is mounted: what is mounted may
// not answer.
func (d *deed) seen(path string, block bool) (decide.Seen, error) {
	mounted, err := d.table.Mounted(path)
	return decide.Seen{
		Mounted: mounted, Device: block && !mounted && err == nil && mount.IsDevice(path), Unreadable: err != nil,
		Dead: d.f.Dead[path],
	}, err
}

// brought returns the phase of a path after a call that ended with err.
func (d *deed) brought(v decide.Verb, before decide.Phase, path string, err error) decide.Phase {
	var seen decide.Seen
	if err != nil {
		seen, _ = d.seen(path, true)
	}
	return decide.Brought(v, before, csi.AnswerOf(err), seen)
}

func (d *deed) unstage(ctx context.Context) error {
	r := d.rec
	if err := d.nowhereElse(); err != nil {
		return err
	}
	r.Stage = decide.Unstaging
	if err := d.settle(); err != nil {
		return err
	}
	_, err := d.f.driver.NodeClient().NodeUnstageVolume(ctx,
		&csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: r.StagingPath})
	if err := d.taken(r.StagingPath, called(d.f.Driver, "NodeUnstageVolume", err)); err != nil {
		return err
	}
	d.tidy(r.StagingPath, filepath.Dir(r.StagingPath))
	r.Stage, r.StagingMounted, d.dirty = "", false, true
	return nil
}

// nowhereElse refuses to let go of a volume that is to be detached while somebody
// has it mounted at a place of his own: what is written there would be lost. As a
// kubelet does, it looks for the same filesystem, and of a device's own for any
// part of it.
func (d *deed) nowhereElse() error {
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
		if p.Device == staged.Device && (whole || p.Root == staged.Root) && !uses.IsAgents(p.Path) {
			return fmt.Errorf("volume %s: %w at %s", d.f.Volume, errElsewhere, p.Path)
		}
	}
	return nil
}

// taken makes sure that a mount is gone after the driver was called to take it
// away: what a driver that says "done" left mounted is unmounted here.
func (d *deed) taken(path string, err error) error {
	if !d.f.Verify {
		return err
	}
	seen, unreadable := d.seen(path, d.rec.Block)
	switch decide.Removed(csi.AnswerOf(err), seen) {
	case decide.Gone:
		return nil
	case decide.DetachDead:
		return errors.Join(err, mount.Detach(path))
	case decide.NotSeen:
		return unreadable
	case decide.UnmountRest:
		d.Log.Warn("driver left a mount behind", "driver", d.f.Driver, "volume", d.f.Volume, "path", path)
		return d.unmountBelow(path)
	case decide.Remains:
	}
	return err
}
