package groupsnapshotter

import (
	"testing"

	"volplane.dev/volplane/internal/kube/kubetest/story"
)

// TestStories: what the group-snapshot-controller does about groups, contents and members.
func TestStories(t *testing.T) {
	story.Run(t, func(*story.Scene) story.Cast { return story.Cast{Controller: NewBinding} })
}
