package flex_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/golden"
	"volplane.dev/volplane/internal/volume"
)

func TestAbsent(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct{ argues, csi, told, dir string }{
		{"no bridge runs there", "lofs.example.com", "", ""},
		{"what is said is not understood", "lofs.example.com", `["lofs.example.com"]`, ""},
		{"it is not installed", "lofs.example.com", `{}`, "/plugins"},
		{"nor is it known where", "lofs.example.com", `{"other.example.com":""}`, ""},
		{"a driver without a vendor", "lofs", `{}`, "/plugins"},
		{"it is broken", "lofs.example.com", `{"lofs.example.com":"driver example.com/lofs does not initialise: exit code 3"}`, "/plugins"},
		{"it is there", "lofs.example.com", `{"lofs.example.com":""}`, "/plugins"},
		{"no FlexVolume driver has such a name", "LOFS", `{}`, "/plugins"},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{}}}
		for k, v := range map[string]string{volume.AnnFlexDrivers: c.told, volume.AnnFlexDir: c.dir} {
			if v != "" {
				n.Annotations[k] = v
			}
		}
		b := flex.Absent(c.csi, n)
		fmt.Fprintf(&out, "# %s\n%s told=%s dir=%s\n----\n%s: %s -> %s\nn1: %s\n\n", c.argues, c.csi, c.told, c.dir, b.Reason, b.Message, b.Next, flex.Lack(c.csi, n))
	}
	golden.Equal(t, "testdata/absent.txt", out.String())
	if b := flex.Absent("lofs.example.com", nil); b.Reason != "" || flex.Told(nil) != nil {
		t.Errorf("a node that is gone is told of: %v", b)
	}
}
