package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// deed carries out the actions of one plan. Each action writes its "...ing"
// phase to the journal before it has an effect; that it is done is written
// with the next one, or by flush: repeating a step that is done does no harm.
type deed struct {
	a *Agent
	f *facts
	// rec is the record as it shall be; dirty says that the journal does not
	// have all of it yet.
	rec   *decide.Record
	dirty bool
	// publishContext is what the attach gave; set by checkAttached.
	publishContext map[string]string
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
	if err := d.a.journal.Put(d.rec); err != nil {
		return err
	}
	d.dirty = false
	return nil
}

// settle writes the record when it says less, or nothing that must be known after
// a crash: a full disk keeps nothing from being taken away.
func (d *deed) settle() error {
	if err := d.a.journal.Settle(d.rec); err != nil {
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
func (d *deed) record() (*decide.Record, error) {
	if d.rec != nil {
		return d.rec, nil
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	d.rec = &decide.Record{Driver: d.f.Driver, Handle: d.f.Handle, Volume: d.f.Volume, Block: d.f.Block, Ephemeral: d.f.Ephemeral, Boot: boot}
	return d.rec, nil
}

func (d *deed) drop() error {
	d.rec, d.dirty = nil, false
	return d.a.journal.Drop(decide.Key(d.f.Driver, d.f.Handle))
}

// checkAttached makes sure, past every cache, that the volume is attached and
// stays so, and reads what the attach gave. volumesInUse was confirmed before,
// so a detach that begins now sees the mark and waits.
func (d *deed) checkAttached(ctx context.Context) error {
	f := d.f
	if !d.a.attached(uniqueName(f.Driver, f.Handle)) {
		return fmt.Errorf("volume %s is being detached from node %s: %w", f.Volume, f.Node, errNotYet)
	}
	name := attachmentName(f.Handle, f.Driver, f.Node)
	va, err := d.a.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		// The authorizer shows an attachment a moment after it is made.
		return fmt.Errorf("attachment %s of volume %s is not to be seen: %w", name, f.Volume, errNotYet)
	case err != nil:
		return fmt.Errorf("read attachment of volume %s: %w", f.Volume, err)
	case va.DeletionTimestamp != nil || !va.Status.Attached:
		return fmt.Errorf("attachment %s of volume %s is not there or is going away: %w", name, f.Volume, errNotYet)
	case va.Spec.NodeName != f.Node || va.Spec.Attacher != f.Driver:
		return fmt.Errorf("attachment %s is of driver %s and node %s, wanted %s and %s", name, va.Spec.Attacher, va.Spec.NodeName, f.Driver, f.Node)
	}
	d.publishContext = va.Status.AttachmentMetadata
	return nil
}

// attachmentName returns the name of the VolumeAttachment of a volume and a
// node.
func attachmentName(handle, driver, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// prepare fills the record with what the driver will be called with, and
// returns how the volume is used. As a kubelet does, the volume's first access
// mode is named.
func (d *deed) prepare() (*decide.Record, *csipb.VolumeCapability, error) {
	pv := d.f.pv
	if pv == nil || len(pv.Spec.AccessModes) == 0 {
		return nil, nil, fmt.Errorf("volume %s has no access mode", d.f.Volume)
	}
	r, err := d.record()
	if err != nil {
		return nil, nil, err
	}
	first := string(pv.Spec.AccessModes[0])
	mode, err := csi.AccessMode([]string{first}, d.f.driver.Node.SingleNodeMultiWriter)
	if err != nil {
		return nil, nil, fmt.Errorf("volume %s: %w", pv.Name, err)
	}
	r.AccessMode, r.FSType, r.Volume = first, pv.Spec.CSI.FSType, pv.Name
	if d.f.AttachRequired {
		r.PublishContext = d.publishContext
	}
	r.StageSecret, r.PublishSecret = secretRef(pv.Spec.CSI.NodeStageSecretRef), secretRef(pv.Spec.CSI.NodePublishSecretRef)
	return r, csi.Capability(mode, d.f.Block, pv.Spec.CSI.FSType, pv.Spec.MountOptions), nil
}

func secretRef(r *corev1.SecretReference) *decide.SecretRef {
	if r == nil {
		return nil
	}
	return &decide.SecretRef{Namespace: r.Namespace, Name: r.Name}
}

// secrets reads a Secret live: the node may not watch Secrets.
func (d *deed) secrets(ctx context.Context, ref *decide.SecretRef) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := d.a.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s of volume %s: %w", ref.Namespace, ref.Name, d.f.Volume, err)
	}
	out := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
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
	r.Stage, r.GrowRefused = decide.Staging, 0
	r.StagingPath = stagingPath(d.a.RootDir, r.Driver, r.Handle, r.Volume, r.Block)
	if err := d.save(); err != nil {
		r.Stage = before
		return err
	}
	if err := mount.MakeBelow(d.a.RootDir, r.StagingPath); err != nil {
		return fmt.Errorf("make staging directory: %w", err)
	}
	pv := d.f.pv
	if group := d.mountGroup(nil); group != "" && capability.GetMount() != nil {
		capability.GetMount().VolumeMountGroup = group
	}
	_, err = d.f.driver.NodeClient().NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: r.Handle, PublishContext: r.PublishContext, StagingTargetPath: r.StagingPath,
		VolumeCapability: capability, Secrets: secrets, VolumeContext: pv.Spec.CSI.VolumeAttributes,
	})
	d.dirty = true
	switch outcome(err) {
	case volume.Done:
		r.Stage = decide.Staged
		_, r.StagingMounted, err = d.a.table.At(r.StagingPath)
		return err
	case volume.Failed:
		// A final no says that this call had no effect, not that an earlier
		// one had none.
		if r.Stage = before; before == "" {
			d.a.tidy(r.StagingPath, filepath.Dir(r.StagingPath))
		}
	}
	return called(d.f.Driver, "NodeStageVolume", err)
}

// outcome takes no driver at its word that says "internal error" and thereby
// that nothing was done: it is asked to undo it.
func outcome(err error) volume.Outcome {
	if csi.Doubtful(err) {
		return volume.Unknown
	}
	return csi.OutcomeOfNodeCall(err)
}

func (d *deed) unstage(ctx context.Context) error {
	r := d.rec
	r.Stage = decide.Unstaging
	if err := d.settle(); err != nil {
		return err
	}
	_, err := d.f.driver.NodeClient().NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: r.StagingPath})
	if err := d.taken(r.StagingPath, called(d.f.Driver, "NodeUnstageVolume", err)); err != nil {
		return err
	}
	d.a.tidy(r.StagingPath, filepath.Dir(r.StagingPath))
	r.Stage, r.StagingMounted, d.dirty = "", false, true
	return nil
}

// taken says whether a mount is gone after the driver took it away. The mount
// table is the truth: what a driver that says "done" left mounted is unmounted
// here, and "not found" is fine when nothing is mounted.
func (d *deed) taken(path string, err error) error {
	if !d.f.Verify {
		return err
	}
	if err != nil && csi.Code(err) != codes.NotFound {
		if d.f.Dead[path] {
			// A driver may not be able to take away what does not answer.
			return errors.Join(err, mount.Detach(path))
		}
		return err
	}
	_, mounted, tableErr := d.a.table.At(path)
	switch {
	case tableErr != nil:
		return tableErr
	case mounted && err != nil:
		return err
	case mounted:
		d.a.Log.Warn("driver left a mount behind", "driver", d.f.Driver, "volume", d.f.Volume, "path", path)
		return mount.Unmount(path)
	}
	return nil
}

// tidy removes directories that nothing is in any more, the innermost first.
// What is not empty stays: nothing is deleted with its content.
func (a *Agent) tidy(paths ...string) {
	for _, p := range paths {
		if err := mount.Remove(p); err != nil {
			a.Log.Debug("directory stays", "path", p, "err", err)
			return
		}
	}
}
