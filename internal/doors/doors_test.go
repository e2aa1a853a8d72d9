package doors

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestOptions: an existing mount is the requested one if its options mean the same; a writable mount is never taken for
// a read-only one.
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

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestInterruptedMount: the request to create the Pod is carried out although its caller is interrupted, so that the
// caller finds the Pod and can take it back.
func TestInterruptedMount(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	created := false
	server := roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			return answer(http.StatusNotFound, &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound})
		}
		interrupt()
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		created = true
		return answer(http.StatusCreated, PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{}))
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server", Transport: server})
	if err != nil {
		t.Fatal(err)
	}
	err = Mount(ctx, client, PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{}))
	if !created || !errors.Is(err, context.Canceled) {
		t.Errorf("the Pod is created: %v; %v", created, err)
	}
}

// answer is a server's answer.
func answer(code int, object runtime.Object) (*http.Response, error) {
	text, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), object)
	return &http.Response{
		StatusCode: code, Body: io.NopCloser(bytes.NewReader(text)),
		Header: http.Header{"Content-Type": {"application/json"}},
	}, err
}

// TestReadOnly: the driver gets the read-only flag of a mount.
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

// TestGivenUp: a Pod that the node agent has given up is an error for the caller that created it, and is replaced
// by the next request, with any options.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI(t)
		made := 0
		// The node agent has room only for the second.
		api.Seen = func(w kubetest.Write) {
			if w.Verb != "create" {
				return
			}
			pod := w.After.(*corev1.Pod).DeepCopy()
			if made++; made == 1 {
				pod.Status.Phase, pod.Status.Message = corev1.PodFailed, "node n1 has no room"
			} else {
				pod.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}}
			}
			api.Put(pod)
		}
		asked := PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := Mount(ctx, api, asked)
		if err == nil || !strings.Contains(err.Error(), "pod "+asked.Name+" has failed: node n1 has no room") {
			t.Errorf("the first: %v", err)
		}
		second := make(chan error, 1)
		go func() {
			second <- Mount(ctx, api, PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{ReadOnly: true}))
		}()
		synctest.Wait()
		api.Wrote("create pods default/"+asked.Name, "delete pods default/"+asked.Name)
		api.Drop(asked)
		if err := <-second; err != nil || made != 2 {
			t.Errorf("the second: %v, %d Pods were made", err, made)
		}
	})
}

// TestPodOfAutomount: the request for an automount is found by the path that people know, after that of a mount there,
// and not that of another node.
func TestPodOfAutomount(t *testing.T) {
	pod := func(name, at, node string) *corev1.Pod {
		p := PodAtPath("default", "data", at, node, decide.BindOptions{})
		p.Name = name
		return p
	}
	client := clientset.New(pod("plain", "/srv", "n1"), pod("other", "/srv", "n2"), pod("under", Stage("/srv"), "n1"),
		pod("automount", Stage("/lazy"), "n1"), pod("far", Stage("/far"), "n2"))
	for dir, want := range map[string]string{
		"/srv": "plain", "/lazy": "automount", Stage("/srv"): "under", "/far": "but of n2",
		"/none": "nothing was mounted at /none",
	} {
		var got string
		if p, err := PodAt(t.Context(), client, "default", "n1", dir); err != nil {
			got = err.Error()
		} else {
			got = p.Name
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", dir, got, want)
		}
	}
}

// TestPodOfEachNode: the same claim at the same path of two nodes is two uses, and two Pods.
func TestPodOfEachNode(t *testing.T) {
	one := PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{})
	two := PodAtPath("default", "data", "/srv", "n2", decide.BindOptions{})
	if one.Name == two.Name {
		t.Errorf("both are %s", one.Name)
	}
}
