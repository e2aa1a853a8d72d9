package mount

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/testkit/golden"
)

// TestSELinux plays testdata/selinux/pods.txt: what Pods say of SELinux, and the mount options of their volume data.
func TestSELinux(t *testing.T) {
	golden.Play(t, "testdata/selinux/pods.txt", func(t *testing.T, given string) string {
		var pod corev1.Pod
		if err := json.Unmarshal([]byte(given), &pod.Spec); err != nil {
			t.Fatal(err)
		}
		return optionsFor(&pod)
	})
}

func optionsFor(pod *corev1.Pod) string {
	if Relabels(pod) {
		return "none: files are relabelled one by one"
	}
	var labels []string
	for _, o := range SELinuxOptions(pod, []string{"data", "again"}) {
		// As on a host whose defaults are those of Fedora.
		if o.Level == "" {
			labels = append(labels, "")
			continue
		}
		labels = append(labels, "system_u:object_r:container_file_t:"+o.Level)
	}
	label, refused := Label(labels)
	if refused != "" {
		return "refused: " + refused
	}
	return strings.Join(WithLabel([]string{"noatime"}, label), ",")
}
