package snapshotter

import (
	"testing"

	"volplane.dev/volplane/internal/kube/kubetest/story"
)

// TestStories: what the snapshot-controller does about snapshots, contents and claims.
func TestStories(t *testing.T) {
	story.Run(t, func(*story.Scene) story.Cast { return story.Cast{Controller: NewBinding} })
}
