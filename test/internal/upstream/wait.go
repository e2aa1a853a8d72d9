package upstream

import (
	"cmp"
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/testkit"
)

// Limit bounds a scene on a busy machine, where the scheduler may try a Pod often.
const Limit = 5 * time.Minute

// Again repeats an operation that failed because a controller was quicker; a refused operation is refused at both
// sides.
func Again(do func() error) error {
	if err := Unmet(do); !Refused(err) {
		return err
	}
	return nil
}

// Unmet repeats an operation that failed because a controller was quicker.
func Unmet(do func() error) error {
	for {
		if err := do(); !Conflict(err) {
			return err
		}
	}
}

// Eventually waits until there is nothing that is not yet so.
func Eventually(ctx context.Context, t *testing.T, notYet func() string) {
	t.Helper()
	if err := testkit.Until(ctx, notYet); err != nil {
		t.Fatal(err)
	}
}

// Poll repeats a question until the answer is true.
func Poll(ctx context.Context, done func() (bool, error)) error {
	var broken error
	err := testkit.Until(ctx, testkit.Unless("it is not done", func() (ok bool) {
		ok, broken = done()
		return ok || broken != nil
	}))
	return cmp.Or(err, broken)
}

// Refused says whether the API may refuse an operation. It does so for good reasons, and on both sides.
func Refused(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsForbidden(err)
}

// Conflict says whether another client has changed the object.
func Conflict(err error) bool { return apierrors.IsConflict(err) }
