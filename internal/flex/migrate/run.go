package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/queue"
	"volplane.dev/volplane/internal/volume"
)

// ErrRefused says that a user has to act before a volume can be moved; the message has the reason.
// Only the steps that were reported before were done.
var ErrRefused = errors.New("refused")

// errConflict says that another writer has changed an object since it was read. Run reads it again.
var errConflict = errors.New("changed by another program")

// Migration moves volumes. It may be used for several volumes concurrently, and by several
// processes: each step applies only to the version of the object that was read.
type Migration struct {
	Client kubernetes.Interface
	// Report is called with each step before it is done, and with each reason to wait; it may be nil.
	Report func(pv string, s migrate.Step)
}

// Run moves a volume to the bridge, or back, and returns the result. It continues an interrupted Run and may be
// repeated. It fails with ErrRefused, with the error of ctx, or with an error of the API server.
func (m *Migration) Run(ctx context.Context, pv string, back bool) (volume.Because, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var changed <-chan struct{}
	last := ""
	for {
		s, f, version, err := m.next(ctx, pv, back)
		if err != nil {
			return volume.Because{}, err
		}
		if m.Report != nil && s.Because.Message != last {
			m.Report(pv, s)
		}
		last = s.Because.Message
		if s.Verb == migrate.Wait {
			if changed == nil {
				// The watch sends once at its start, for changes between the read and the watch.
				changed = m.watch(ctx, f)
			}
			if err := await(ctx, changed); err != nil {
				return s.Because, fmt.Errorf("%s: %w", s.Because.Message, err)
			}
			continue
		}
		if err := m.apply(ctx, f, s, version); err != nil && !errors.Is(err, errConflict) {
			return s.Because, err
		}
		if s.Verb == migrate.Finish || s.Verb == migrate.Nothing {
			return s.Because, nil
		}
	}
}

func await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-changed:
		return nil
	}
}

func (m *Migration) next(ctx context.Context, pv string, back bool) (migrate.Step, migrate.Facts, string, error) {
	j, version, err := m.load(ctx, pv)
	if err != nil {
		return migrate.Step{}, migrate.Facts{}, "", err
	}
	reversed := j != nil && j.Back != back
	f, err := m.gather(ctx, pv, j)
	if err != nil {
		return migrate.Step{}, f, "", err
	}
	if reversed || j == nil && back {
		return migrate.Turn(f, back), f, version, nil
	}
	return migrate.Next(f), f, version, nil
}

// apply does one step. It fails with errConflict if an object has changed since it was read; then
// the decision is taken again.
func (m *Migration) apply(ctx context.Context, f migrate.Facts, s migrate.Step, version string) error {
	var err error
	core := m.Client.CoreV1()
	switch s.Verb {
	case migrate.Nothing:
		return nil
	case migrate.Refuse:
		return fmt.Errorf("%w: %s", ErrRefused, s.Because.Message)
	case migrate.Save:
		return asConflict(m.save(ctx, s.Journal, version))
	case migrate.Keep, migrate.Policy:
		err = m.patch(ctx, f.Volume, map[string]any{"persistentVolumeReclaimPolicy": s.Policy})
	case migrate.Reserve:
		err = m.patch(ctx, f.Volume, map[string]any{"claimRef": map[string]any{"uid": nil, "resourceVersion": nil}})
	case migrate.DeleteClaim:
		err = kube.IgnoreNotFound(core.PersistentVolumeClaims(f.Claim.Namespace).Delete(ctx, f.Claim.Name, onlyThis(f.Claim)))
	case migrate.DeleteVolume:
		err = kube.IgnoreNotFound(core.PersistentVolumes().Delete(ctx, f.Volume.Name, onlyThis(f.Volume)))
	case migrate.CreateVolume:
		_, err = core.PersistentVolumes().Create(ctx, s.Volume, metav1.CreateOptions{})
	case migrate.CreateClaim:
		_, err = core.PersistentVolumeClaims(s.Claim.Namespace).Create(ctx, s.Claim, metav1.CreateOptions{})
	case migrate.Finish:
		return m.finish(ctx, f.Journal, version)
	default:
		return fmt.Errorf("no step is called %q", s.Verb)
	}
	if err = asConflict(err); err != nil {
		return fmt.Errorf("%s: %w", s.Because.Message, err)
	}
	return nil
}

// finish marks a journal as done. After a move back it is deleted.
func (m *Migration) finish(ctx context.Context, j *migrate.Journal, version string) error {
	if j.Back {
		return m.deleteJournal(ctx, j.Volume.Name)
	}
	done := *j
	done.Done = true
	return asConflict(m.save(ctx, &done, version))
}

// asConflict wraps errors that are caused by another writer in errConflict.
func asConflict(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", errConflict, err)
	}
	return err
}

// onlyThis returns preconditions by which only the version of the object that was read is deleted.
func onlyThis(o metav1.Object) metav1.DeleteOptions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

// patch changes a volume's spec, if the volume is still the version that was read.
func (m *Migration) patch(ctx context.Context, pv *corev1.PersistentVolume, spec map[string]any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID, "resourceVersion": pv.ResourceVersion}, "spec": spec,
	})
	if err != nil {
		return err
	}
	_, err = m.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// watch returns a channel that receives whenever an object that the decision depends on may have
// changed, and at least once, until ctx ends.
func (m *Migration) watch(ctx context.Context, f migrate.Facts) <-chan struct{} {
	changed := make(chan struct{}, 1)
	core, storage := m.Client.CoreV1(), m.Client.StorageV1()
	known := f.Volume
	if f.Journal != nil {
		known = f.Journal.Volume
	}
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", f.Name).String()}
	sources := []func() (watch.Interface, error){
		func() (watch.Interface, error) { return core.PersistentVolumes().Watch(ctx, one) },
		func() (watch.Interface, error) { return core.Nodes().Watch(ctx, metav1.ListOptions{}) },
		func() (watch.Interface, error) { return storage.VolumeAttachments().Watch(ctx, metav1.ListOptions{}) },
	}
	if known != nil && known.Spec.ClaimRef != nil {
		ref := known.Spec.ClaimRef
		claim := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", ref.Name).String()}
		sources = append(sources,
			func() (watch.Interface, error) { return core.PersistentVolumeClaims(ref.Namespace).Watch(ctx, claim) },
			func() (watch.Interface, error) { return core.Pods(ref.Namespace).Watch(ctx, metav1.ListOptions{}) })
	}
	for _, open := range sources {
		go follow(ctx, open, changed)
	}
	return changed
}

// follow forwards the events of a watch, and restarts the watch when it ends; each restart counts as a change.
func follow(ctx context.Context, open func() (watch.Interface, error), changed chan<- struct{}) {
	for n := 0; ctx.Err() == nil; n++ {
		w, err := open()
		if err == nil {
			for range w.ResultChan() {
				n = 0
				lifecycle.Wake(changed)
			}
			w.Stop()
		}
		lifecycle.Sleep(ctx, queue.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}.Pause(n))
		lifecycle.Wake(changed)
	}
}
