package exchange

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"volplane.dev/volplane/internal/sidecar"
)

// TestOneSed: the command with which docs/cluster.md begins finds the image of every sidecar in upstream's own
// manifests, and the program of that name understands the container's arguments.
func TestOneSed(t *testing.T) {
	t.Parallel()
	understood := map[string]int{}
	for _, m := range []struct{ module, file string }{
		{"external-provisioner/v6", "deployment.yaml"},
		{"external-provisioner/v6", "storage-capacity.yaml"},
		{"external-attacher/v4", "deployment.yaml"},
		{"external-resizer/v2", "deployment.yaml"},
		{"external-snapshotter/v8", "csi-snapshotter/setup-csi-snapshotter.yaml"},
		{"external-snapshotter/v8", "snapshot-controller/setup-snapshot-controller.yaml"},
	} {
		for _, c := range containersIn(t, oneSed(t, upstreamManifest(t, m.module, m.file))) {
			if name, ours := sidecarIn(t, c); ours {
				understood[name]++
			}
		}
	}
	for _, name := range []string{
		"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller",
	} {
		if understood[name] == 0 {
			t.Errorf("no container of %s was found: %v", name, understood)
		}
	}
}

// oneSed returns manifests as the command changes them with which docs/cluster.md begins.
func oneSed(t *testing.T, manifests string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?s)    (sidecars='.*?')\n    (sed -E ".*?") driver\.yaml \|`).FindSubmatch(page)
	if found == nil {
		t.Fatal("the page has no such command")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", string(found[1])+"; "+string(found[2]))
	cmd.Stdin = strings.NewReader(manifests)
	changed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(changed)
}

// TestOneSedOfAnyImage: the command knows the image of every sidecar, however a manifest names it.
func TestOneSedOfAnyImage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller", "livenessprobe",
		"csi-node-driver-registrar", "csi-external-health-monitor-controller",
	} {
		for _, image := range []string{
			"example.com/" + name + ":v1", "example.com/" + name + "@sha256:0",
			`"example.com:5000/a/b/` + name + `:v1" # why`,
		} {
			want := "  - image: example.com/volplane/" + name + ":v0.1.0\n    args: [--image: x]\n"
			if got := oneSed(t, "  - image: "+image+"\n    args: [--image: x]\n"); got != want {
				t.Errorf("%s becomes %s", image, got)
			}
		}
	}
	const drivers = "image: example.com/my-csi-provisioner:v1\nimage: example.com/driver:v1\n"
	if got := oneSed(t, drivers); got != drivers {
		t.Errorf("the images of drivers become %s", got)
	}
}

// sidecarIn returns the sidecar in a container, which must accept its arguments. Its image must be ours.
func sidecarIn(t *testing.T, c corev1.Container) (string, bool) {
	t.Helper()
	name, _, _ := strings.Cut(path.Base(c.Image), ":")
	role, known := sidecar.RoleOf(name)
	if !known {
		return "", false
	}
	if filepath.Dir(c.Image) != "example.com/volplane" {
		t.Errorf("the command leaves image %s as it is", c.Image)
	}
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	args := make([]string, 0, len(c.Args))
	for _, a := range c.Args {
		// A kubelet writes $(NAME) out.
		args = append(args, os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(a), func(n string) string {
			return env[n]
		}))
	}
	o, without, err := role.Parse(name, args, func(n string) string { return env[n] })
	if err != nil {
		t.Errorf("%s does not understand %q: %v", name, args, err)
	}
	t.Logf("%s %q: socket %s, leader election %v, without effect: %v", name, args, o.Socket, o.Elects, without)
	return name, true
}

// containersIn returns the containers of all workloads of a file.
func containersIn(t *testing.T, text string) []corev1.Container {
	t.Helper()
	var out []corev1.Container
	for docs := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		var o struct {
			Spec struct {
				Template struct{ Spec corev1.PodSpec }
			}
		}
		err := docs.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, o.Spec.Template.Spec.Containers...)
	}
}
