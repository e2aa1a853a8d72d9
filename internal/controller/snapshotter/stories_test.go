package snapshotter

import (
	"testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
)

// TestStories: what the snapshot-controller does about snapshots, contents and claims. The command distributed, before
// start, is for drivers with a snapshotter on each node.
func TestStories(t *testing.T) {
	story.Run(t, "testdata", func(*story.Scene) story.Cast {
		distributed := false
		return story.Cast{
			Controller: func(e controller.Env) *controller.Controller { return NewBinding(e, distributed) },
			Commands: map[string]func([]string) error{"distributed": func([]string) error {
				distributed = true
				return nil
			}},
		}
	})
}
