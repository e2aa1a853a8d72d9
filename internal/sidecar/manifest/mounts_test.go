package manifest_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/sidecar/nodesidecar"
)

// podsOf returns the Pods of what runs, by the name of the object; a StatefulSet
// and a Deployment are alike where it matters.
func podsOf(t *testing.T, text string) map[string]corev1.PodSpec {
	t.Helper()
	out := map[string]corev1.PodSpec{}
	for document := range strings.SplitSeq(text, "---\n") {
		var o appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		if pod := o.Spec.Template.Spec; len(pod.Containers) > 0 {
			out[strings.TrimPrefix(o.Name, "csi-example-com-")] = pod
		}
	}
	return out
}

// mounts says what a container has of which volume and where.
func mounts(pod corev1.PodSpec, c corev1.Container) (out []string) {
	for _, m := range c.VolumeMounts {
		v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		from := "emptyDir"
		if h := v.HostPath; h != nil {
			from = fmt.Sprint(h.Path, " ", *h.Type)
		}
		if m.MountPropagation != nil {
			from += " " + string(*m.MountPropagation)
		}
		out = append(out, from+" at "+m.MountPath)
	}
	return out
}

// TestWhoMountsWhat: the containers of the controllers' Pod share the socket's
// directory and have nothing else (S1-090); the kubelet's directory is only the
// driver's, with mounts that propagate both ways (S1-092), that of registration
// sockets only the registrar's (S1-091), and the socket's is made if need be
// (S1-093).
func TestWhoMountsWhat(t *testing.T) {
	const (
		shared       = "emptyDir at /csi"
		tmp          = "emptyDir at /tmp"
		socket       = "/var/lib/kubelet/plugins/csi.example.com DirectoryOrCreate at /csi"
		kubelet      = "/var/lib/kubelet Directory Bidirectional at /var/lib/kubelet"
		registration = "/var/lib/kubelet/plugins_registry Directory at /registration"
	)
	onNodes := map[string][]string{
		"node/driver": {socket, kubelet}, "node/registrar": {socket, registration},
		"node/liveness": {socket},
	}
	for shape, more := range map[string]map[string][]string{
		"deployment": {
			"controller/driver": {shared, tmp}, "controller/controllers": {shared}, "controller/liveness": {shared},
		},
		"statefulset": {
			"controller/driver": {shared, tmp}, "controller/controllers": {shared}, "controller/liveness": {shared},
		},
		"daemonset": {"node/controllers": {socket}},
	} {
		text, _ := printed(t, "--shape="+shape)
		seen := 0
		for name, pod := range podsOf(t, text) {
			for _, c := range pod.Containers {
				key := name + "/" + c.Name
				if got, want := mounts(pod, c), slices.Concat(onNodes[key], more[key]); !slices.Equal(got, want) {
					t.Errorf("%s: %s has %q, want %q", shape, key, got, want)
				}
				seen++
				if privileged := c.SecurityContext.Privileged; (privileged != nil && *privileged) != (key == "node/driver") {
					t.Errorf("%s: %s is privileged: %v", shape, key, privileged)
				}
			}
		}
		if seen != len(onNodes)+len(more) {
			t.Errorf("%s: there are %d containers", shape, seen)
		}
	}
}

// TestArgumentsAreUnderstood: volplane takes the arguments of its containers in every golden file, and a flag that is
// renamed must be renamed there, too.
func TestArgumentsAreUnderstood(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range podsOf(t, string(text)) {
			for _, c := range pod.Containers {
				if program, complaint := understands(t, c); program != "" {
					tried[program] = true
					if complaint != "" {
						t.Errorf("%s: %s %v: %s", file, program, c.Args, complaint)
					}
				}
			}
		}
	}
	if len(tried) != 4 {
		t.Errorf("only these have been tried: %v", tried)
	}
}

// understands returns which program of volplane a container starts, empty if it is none, and what that says against the
// arguments.
func understands(t *testing.T, c corev1.Container) (program, complaint string) {
	t.Helper()
	var out, complaints bytes.Buffer
	if c.Name == "driver" || slices.Equal(c.Command, []string{"volplane"}) {
		return "", ""
	}
	if len(c.Command) > 0 {
		nodesidecar.Main(t.Context(), slices.Concat(c.Command, c.Args, []string{"--version"}),
			nodesidecar.Streams{Out: &out, Err: &complaints}, "test")
		return c.Command[0], complaints.String()
	}
	cli.Main(t.Context(), append(c.Args, "--help"), cli.Streams{Out: &out, Err: &complaints}, "test",
		cli.Programs{DriverControllers: app.ClusterControllers()})
	return c.Args[0], complaints.String()
}
