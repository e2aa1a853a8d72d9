package volumes

import (
	"context"
	"fmt"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
)

// failure is an action that was not done, and why.
type failure struct {
	action decide.Action
	err    error
}

func (d *deed) do(ctx context.Context, action decide.Action) error {
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
	case decide.Republish:
		return d.republish(ctx, action.Path)
	case decide.Grow:
		return d.grow(ctx)
	case decide.Unbind, decide.Unpublish, decide.Unstage:
		return d.takeAway(ctx, action)
	case decide.Drop:
		return d.drop()
	default:
		return fmt.Errorf("unknown action %q", action.Verb)
	}
}

// takeAway ends what somebody may be using, unless nothing may be taken away.
func (d *deed) takeAway(ctx context.Context, action decide.Action) error {
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
