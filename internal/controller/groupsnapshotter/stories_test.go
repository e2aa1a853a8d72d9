package groupsnapshotter

import (
	"testing"

	"volplane.dev/volplane/internal/controller/story"
)

// TestStories: what the group-snapshot-controller does about groups, contents and members.
func TestStories(t *testing.T) {
	story.Run(t, "testdata", func(*story.Scene) story.Cast { return story.Cast{Controller: NewBinding} })
}
