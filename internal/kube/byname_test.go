package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// chain makes a claim, and the volume that it names.
func chain(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
	claim.Spec.VolumeName = "pv-" + name
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name, UID: types.UID("pv-" + name)}}
	_, err := c.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})
	if err == nil {
		_, err = c.CoreV1().PersistentVolumeClaims("n").Create(t.Context(), claim, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// use makes a Pod that names claims.
func use(t *testing.T, c kubernetes.Interface, name string, claims ...string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
	pod.Spec.NodeName = "n1"
	for _, claim := range claims {
		v := corev1.Volume{Name: claim}
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	if _, err := c.CoreV1().Pods("n").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestByName: what is read by name is what Pods and claims name, and it is there before them; what nothing names any
// more is forgotten.
func TestByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		for _, name := range []string{"a", "b", "foreign", "left"} {
			chain(t, client, name)
		}
		use(t, client, "first", "a")
		ctx, end := context.WithCancel(t.Context())
		defer end()
		caches := NewNodeCaches(client, "n1")
		caches.ByName([]string{"pv-left"})
		caches.Pods().Watch(func(_, pod *corev1.Pod) {
			if pod == nil {
				return
			}
			for _, name := range cluster.ClaimNames(pod) {
				_, claim := caches.Claims().Get("n/" + name)
				_, volume := caches.Volumes().Get("pv-" + name)
				if there := name != "absent"; claim != there || volume != there {
					t.Errorf("pod %s is seen, its claim: %v, its volume: %v, want %v", pod.Name, claim, volume, there)
				}
			}
		})
		if err := caches.Start(ctx); err != nil {
			t.Fatal(err)
		}
		expect := func(when, claims, volumes string) {
			t.Helper()
			synctest.Wait()
			if c, v := keys(caches.Claims().List()), keys(caches.Volumes().List()); c != claims || v != volumes {
				t.Errorf("%s: claims %q, volumes %q, want %q and %q", when, c, v, claims, volumes)
			}
		}
		expect("at the start", "n/a", "pv-a pv-left")
		use(t, client, "second", "b", "absent")
		expect("with another Pod", "n/a n/b", "pv-a pv-b pv-left")
		chain(t, client, "absent")
		expect("when its claim comes", "n/a n/absent n/b", "pv-a pv-absent pv-b pv-left")
		if err := client.CoreV1().Pods("n").Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("without the Pod", "n/a n/absent n/b", "pv-a pv-absent pv-b pv-left")
		caches.Release([]string{"pv-b"})
		expect("after a release", "n/a", "pv-a pv-b")
		use(t, client, "third", "b")
		expect("when a Pod comes back", "n/a n/b", "pv-a pv-b")
	})
}

// TestImpossibleNames: a name that no object can have is not asked for, because a request that always fails would keep
// later Pods from being seen.
func TestImpossibleNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		chain(t, client, "a")
		client.PrependReactor("list", "persistentvolumeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked := a.(clienttesting.ListAction).GetListRestrictions().Fields.String()
			if asked != "metadata.name=a" {
				return true, nil, fmt.Errorf("asked for %.40q", asked)
			}
			return false, nil, nil
		})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		caches := NewNodeCaches(client, "n1")
		caches.ByName(nil)
		if err := caches.Start(ctx); err != nil {
			t.Fatal(err)
		}
		use(t, client, "hostile", strings.Repeat("a", 1<<20), strings.Repeat("%", 1<<18), "", "A/b", "x\n")
		use(t, client, "later", "a")
		synctest.Wait()
		if _, seen := caches.Pods().Get("n/later"); !seen || keys(caches.Claims().List()) != "n/a" {
			t.Errorf("the later Pod is seen: %v, with claims %q", seen, keys(caches.Claims().List()))
		}
	})
}

// TestManyNames: more names than are worth a watch each have all objects be read, and nothing is lost on the way.
func TestManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		var all []string
		for i := range mostNamed + 2 {
			all = append(all, fmt.Sprintf("c%03d", i))
			chain(t, client, all[i])
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		caches := NewNodeCaches(client, "n1")
		caches.ByName(nil)
		var gone []string
		caches.Claims().Watch(func(_, claim *corev1.PersistentVolumeClaim) {
			if claim == nil {
				gone = append(gone, "a claim")
			}
		})
		if err := caches.Start(ctx); err != nil {
			t.Fatal(err)
		}
		use(t, client, "few", all[:mostNamed]...)
		synctest.Wait()
		if got := len(caches.Claims().List()); got != mostNamed {
			t.Fatalf("%d claims, want %d", got, mostNamed)
		}
		use(t, client, "more", all[mostNamed])
		chain(t, client, "new")
		synctest.Wait()
		if _, found := caches.Claims().Get("n/new"); !found || len(caches.Claims().List()) != len(all)+1 {
			t.Errorf("%d claims, with the new one: %v, want all %d", len(caches.Claims().List()), found, len(all)+1)
		}
		if _, found := caches.Volumes().Get("pv-new"); !found {
			t.Error("not all volumes are read")
		}
		caches.Release(nil)
		if got := len(caches.Claims().List()); got != len(all)+1 || !slices.Equal(gone, nil) {
			t.Errorf("%d claims are left, and %v was told to be gone", got, gone)
		}
	})
}
