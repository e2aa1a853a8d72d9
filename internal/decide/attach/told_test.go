package attach_test

import (
	"testing"

	"volplane.dev/volplane/internal/decide/attach"
)

// TestTold: what an event says of an attachment elsewhere, in the words of volplane and of Kubernetes.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		message string
		other   bool
		volume  string
	}{
		{`Multi-Attach error for volume "v1" Volume is already used by pod(s) web`, true, "v1"},
		{`Waiting for detach for volume "v1" Volume is already exclusively attached`, true, "v1"},
		{`AttachVolume.Attach failed for volume "v1" : rpc error`, false, "v1"},
		{`a Multi-Attach error for volume "v1`, false, ""},
		{"Unable to attach or mount volumes", false, ""},
	} {
		if other, name := attach.IsMultiAttach(c.message), attach.VolumeIn(c.message); other != c.other || name != c.volume {
			t.Errorf("%s: elsewhere %t, volume %q; want %t, %q", c.message, other, name, c.other, c.volume)
		}
	}
}
