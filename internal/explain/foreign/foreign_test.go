package foreign_test

import (
	"testing"

	"volplane.dev/volplane/internal/explain/foreign"
)

// TestTold: what an event says about an attachment elsewhere, in the words of volplane and of Kubernetes.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		message string
		other   bool
		volume  string
		pods    bool
	}{
		{`Multi-Attach error for volume "v1" Volume is already used by pod(s) web`, true, "v1", true},
		{`Waiting for detach for volume "v1" Volume is already exclusively attached`, true, "v1", false},
		{`AttachVolume.Attach failed for volume "v1" : rpc error`, false, "v1", false},
		{`a Multi-Attach error for volume "v1`, false, "", false},
		{"Unable to attach or mount volumes", false, "", false},
	} {
		other, name := foreign.IsMultiAttach(c.message), foreign.VolumeIn(c.message)
		if pods := foreign.NamesPods(c.message); other != c.other || name != c.volume || pods != c.pods {
			t.Errorf("%s: elsewhere %t, volume %q, its Pods %t; want %+v", c.message, other, name, pods, c)
		}
	}
}
