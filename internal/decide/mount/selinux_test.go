package mount

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/testkit/golden"
)

// TestSELinux plays testdata/selinux/pods.txt: what Pods say of SELinux, and the mount options of their volume data.
func TestSELinux(t *testing.T) {
	const name = "testdata/selinux/pods.txt"
	table, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range strings.Split(strings.TrimSpace(string(table)), "\n\n") {
		given, _, _ := strings.Cut(c, "\n----")
		title, spec, _ := strings.Cut(given, "\n")
		var pod corev1.Pod
		if err := json.Unmarshal([]byte(spec), &pod.Spec); err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		out = append(out, given+"\n----\n"+optionsFor(&pod))
	}
	golden.Equal(t, name, strings.Join(out, "\n\n")+"\n")
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
