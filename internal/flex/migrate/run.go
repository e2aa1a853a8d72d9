package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/volume"
)

// ErrRefused says that a user has to act before a volume can be moved. It comes
// wrapped with the reason; nothing was done since the last step that was told.
var ErrRefused = errors.New("refused")

// errConflict says that an object was changed by somebody else since it was
// looked at. Run looks again.
var errConflict = errors.New("changed meanwhile")

// Migration moves volumes. It may be used for several volumes at once, and by
// several processes: each step is for the object that was looked at only.
type Migration struct {
	Client kubernetes.Interface
	// Told is called with each step before it is done and with what is waited
	// for; nil tells nobody.
	Told func(pv string, s migrate.Step)
}

// Run moves a volume to the bridge, or with back to what it was, and returns how
// it ended. It goes on where an earlier Run was broken off, and may be
// repeated. It fails with ErrRefused, with ctx, or when the server does.
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
		if m.Told != nil && s.Because.Message != last {
			m.Told(pv, s)
		}
		last = s.Because.Message
		if s.Verb == migrate.Wait {
			if changed == nil {
				// It tells once at its beginning: the look was before it.
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
	turn := j != nil && j.Back != back
	f, err := m.gather(ctx, pv, j)
	if err != nil {
		return migrate.Step{}, f, "", err
	}
	if turn || j == nil && back {
		return migrate.Turn(f, back), f, version, nil
	}
	return migrate.Next(f), f, version, nil
}

// apply does one step. An object that is not as it was looked at makes it fail
// with errConflict: the next look decides anew.
func (m *Migration) apply(ctx context.Context, f migrate.Facts, s migrate.Step, version string) error {
	var err error
	core := m.Client.CoreV1()
	switch s.Verb {
	case migrate.Nothing:
		return nil
	case migrate.Refuse:
		return fmt.Errorf("%w: %s", ErrRefused, s.Because.Message)
	case migrate.Save:
		return conflicting(m.save(ctx, s.Journal, version))
	case migrate.Keep, migrate.Policy:
		err = m.patch(ctx, f.Volume, map[string]any{"persistentVolumeReclaimPolicy": s.Policy})
	case migrate.Reserve:
		err = m.patch(ctx, f.Volume, map[string]any{"claimRef": map[string]any{"uid": nil, "resourceVersion": nil}})
	case migrate.DeleteClaim:
		err = gone(core.PersistentVolumeClaims(f.Claim.Namespace).Delete(ctx, f.Claim.Name, this(f.Claim)))
	case migrate.DeleteVolume:
		err = gone(core.PersistentVolumes().Delete(ctx, f.Volume.Name, this(f.Volume)))
	case migrate.CreateVolume:
		_, err = core.PersistentVolumes().Create(ctx, s.Volume, metav1.CreateOptions{})
	case migrate.CreateClaim:
		_, err = core.PersistentVolumeClaims(s.Claim.Namespace).Create(ctx, s.Claim, metav1.CreateOptions{})
	case migrate.Finish:
		return m.finish(ctx, f.Journal, version)
	default:
		return fmt.Errorf("no step is called %q", s.Verb)
	}
	if err = conflicting(err); err != nil {
		return fmt.Errorf("%s: %w", s.Because.Message, err)
	}
	return nil
}

// finish ends a journal. After the way back there is nothing left to go back to.
func (m *Migration) finish(ctx context.Context, j *migrate.Journal, version string) error {
	if j.Back {
		return m.forget(ctx, j.Volume.Name)
	}
	done := *j
	done.Done = true
	return conflicting(m.save(ctx, &done, version))
}

// conflicting marks errors that say that somebody else was faster.
func conflicting(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", errConflict, err)
	}
	return err
}

// gone takes what is not there for deleted.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// this makes a deletion one of the object that was looked at, unchanged.
func this(o metav1.Object) metav1.DeleteOptions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

// patch changes a volume's spec, if it is still the one that was looked at.
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
