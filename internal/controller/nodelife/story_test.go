package nodelife_test

import (
	"testing"
	"time"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/nodelife"
	"volplane.dev/volplane/internal/controller/story"
)

// TestStories plays testdata/*.txt.
func TestStories(t *testing.T) {
	story.Run(t, "testdata", func(*story.Scene) story.Cast {
		return story.Cast{Controller: func(env controller.Env) *controller.Controller { return nodelife.New(env, time.Now) }}
	})
}
