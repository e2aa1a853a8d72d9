package crash

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// until repeats the question until the answer is "".
func until(ctx context.Context, notYet func() (string, error)) error {
	var broken error
	err := testkit.Until(ctx, func() (missing string) {
		missing, broken = notYet()
		if broken != nil {
			return ""
		}
		return missing
	})
	return cmp.Or(err, broken)
}

func claimIs(phase corev1.PersistentVolumeClaimPhase) act { return namedIs("c", phase) }

func namedIs(name string, phase corev1.PersistentVolumeClaimPhase) act {
	return func(ctx context.Context, w *survivors) error {
		return until(ctx, func() (string, error) {
			c, err := w.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, name, metav1.GetOptions{})
			if err != nil || c.Status.Phase == phase {
				return "", err
			}
			return fmt.Sprintf("claim %s is %s, not %s", name, c.Status.Phase, phase), nil
		})
	}
}

// appears waits until there is a claim of that name.
func appears(name string) act {
	return func(ctx context.Context, w *survivors) error {
		return until(ctx, func() (string, error) {
			_, err := w.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "there is no claim " + name, nil
			}
			return "", err
		})
	}
}

func volumeIs(phase corev1.PersistentVolumePhase) act {
	return func(ctx context.Context, w *survivors) error {
		return until(ctx, func() (string, error) {
			all, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
			if err != nil || len(all.Items) == 1 && all.Items[0].Status.Phase == phase {
				return "", err
			}
			return fmt.Sprintf("no volume is %s", phase), nil
		})
	}
}

func noClaim(ctx context.Context, w *survivors) error { return noNamed("c")(ctx, w) }

func noNamed(name string) act {
	return func(ctx context.Context, w *survivors) error {
		return until(ctx, func() (string, error) {
			c, err := w.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return "", nil
			case err != nil:
				return "", err
			}
			return fmt.Sprintf("claim %s is there, with finalizers %v", name, c.Finalizers), nil
		})
	}
}

// settled waits until the numbers of volume objects, and of volumes at the driver, are these.
func (w *survivors) settled(ctx context.Context, objects, volumes int) error {
	return until(ctx, func() (string, error) {
		all, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		if n := len(w.driver.Volumes()); len(all.Items) != objects || n != volumes {
			return fmt.Sprintf("%d volumes are left and %d at the driver, not %d and %d", len(all.Items), n, objects, volumes),
				nil
		}
		return w.wrong(ctx, volumes-objects)
	})
}

// noIntents waits until no intent is left.
func noIntents(ctx context.Context, w *survivors) error {
	return until(ctx, func() (string, error) { return intents(ctx, w) })
}

// intents describes the intents that are left.
func intents(ctx context.Context, w *survivors) (string, error) {
	all, err := w.client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
	if err != nil || len(all.Items) == 0 {
		return "", err
	}
	return fmt.Sprintf("intents are left: %v", all.Items[0].Data), nil
}
