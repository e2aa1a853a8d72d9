package placement

import (
	"testing"

	"volplane.dev/volplane/internal/controller/story"
)

// TestStories plays testdata/*.txt.
func TestStories(t *testing.T) {
	story.Run(t, "testdata", func(*story.Scene) story.Cast { return story.Cast{Controller: New} })
}
