package storageprovider

import (
	"testing"

	"volplane.dev/volplane/internal/door/users/userstest"
)

// TestStories plays the calls of systemd, and failures around them.
func TestStories(t *testing.T) {
	userstest.Stories(t, func(t *testing.T) (play func(step string) string, stop func()) {
		w := newWorld(t)
		return w.play, func() { w.stop() }
	})
}
