package manifest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
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
		socket       = "/var/lib/kubelet/plugins/csi.example.com DirectoryOrCreate at /csi"
		kubelet      = "/var/lib/kubelet Directory Bidirectional at /var/lib/kubelet"
		registration = "/var/lib/kubelet/plugins_registry Directory at /registration"
	)
	onNodes := map[string][]string{"node/driver": {socket, kubelet}, "node/registrar": {socket, registration}}
	for shape, more := range map[string]map[string][]string{
		"deployment":  {"controller/driver": {shared}, "controller/controllers": {shared}},
		"statefulset": {"controller/driver": {shared}, "controller/controllers": {shared}},
		"daemonset":   {"node/controllers": {socket}},
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
