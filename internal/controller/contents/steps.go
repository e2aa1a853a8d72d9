package contents

import (
	"context"
	"errors"
	"fmt"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
)

// errAbsent says that the API server itself has said that an object does not exist.
var errAbsent = errors.New("the object does not exist")

// Step does the next step for a key. absent says that an earlier one has ended with what Look says of an object that
// does not exist.
type Step func(ctx context.Context, key controller.Key, absent bool) (done bool, err error)

// Steps does the steps for a key until none is left, most of them at the most: then it is looked at again.
func Steps(ctx context.Context, key controller.Key, most int, next Step) (controller.Result, error) {
	absent := false
	for range most {
		done, err := next(ctx, key, absent)
		switch {
		case errors.Is(err, errAbsent):
			absent = true
		case done || err != nil:
			return controller.Result{}, kube.IgnoreNotFound(err)
		}
	}
	return controller.Result{}, fmt.Errorf("%s: %w", key, errSteps)
}

// Look asks the API server itself whether an object exists that a cache does not have; its answer is for Steps.
func Look[T kube.Object](ctx context.Context, w kube.Writer[T], namespace, name string) error {
	exists, err := w.Look(ctx, namespace, name)
	if err == nil && !exists {
		return errAbsent
	}
	return err
}
