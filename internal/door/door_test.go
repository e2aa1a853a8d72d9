package door

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestOptions: a mount that is there is the one that is asked for if its options mean the same; one that may be written
// is never taken for one that can only be read.
func TestOptions(t *testing.T) {
	for _, c := range []struct {
		has, asked string
		same       bool
	}{
		{"", "", true},
		{"suid,dev", "dev,suid", true},
		{"nosuid,dev", "dev", true},
		{"rw", "", true},
		{"ro", "noexec,ro,exec", true},
		{"", "ro", false},
		{"ro", "", false},
		{"dev", "suid", false},
		{"unknown", "unknown", false},
	} {
		options, err := decide.HostOptions(c.asked)
		if err != nil && c.same {
			t.Fatal(err)
		}
		asked := PodAtPath("default", "data", "/srv", "n1", options)
		if err != nil {
			asked.Annotations[volume.AnnMountOptions] = c.asked
		}
		there := asked.DeepCopy()
		there.Annotations[volume.AnnMountOptions] = c.has
		there.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}}
		err = Mount(t.Context(), kubetest.NewAPI(t, there), asked)
		if c.same != (err == nil) || err != nil && !strings.Contains(err.Error(), "already mounted there with the options") {
			t.Errorf("%q is there, %q is asked for: %v", c.has, c.asked, err)
		}
	}
}

// TestReadOnly: what the mount may not write, the driver is told of.
func TestReadOnly(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		pod := PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{ReadOnly: readOnly})
		if got := pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly; got != readOnly {
			t.Errorf("the claim is read-only: %v", got)
		}
		if got := pod.Annotations[volume.AnnMountOptions] == "ro"; got != readOnly {
			t.Errorf("the mount is read-only: %v", got)
		}
	}
}

// TestPodAt: who may see the Pods of one namespace only finds a mount among them, and every other error is one.
func TestPodAt(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := apierrors.NewForbidden(pods, "", nil)
	for name, c := range map[string]struct {
		ns, fails string
		err       error
		found     bool
	}{
		"all namespaces":                {"other", "nowhere", nil, true},
		"its own namespace":             {"default", "", forbidden, true},
		"another namespace":             {"other", "", forbidden, false},
		"not even its own namespace":    {"default", "default", forbidden, false},
		"a server that does not answer": {"default", "", apierrors.NewServerTimeout(pods, "list", 0), false},
	} {
		t.Run(name, func(t *testing.T) {
			api := kubetest.NewAPI(t, PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{}))
			api.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return c.err != nil && (a.GetNamespace() == "" || a.GetNamespace() == c.fails), nil, c.err
			})
			pod, err := PodAt(t.Context(), api, c.ns, "n1", "/srv")
			if (pod != nil) != c.found || (err == nil) != c.found {
				t.Errorf("%v, %v", pod, err)
			}
		})
	}
}
