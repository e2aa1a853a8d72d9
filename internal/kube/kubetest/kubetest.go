package kubetest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit"
)

// Eventually fails the test when f does not become empty within a minute; f says
// what is missing.
func Eventually(t testing.TB, f func() string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, f)
}

// Follow is called before caches start, and returns what waits until all that they
// have listed is watched: this client forgets what happens between a list and a
// watch.
func Follow(t testing.TB, client *fake.Clientset) (followed func()) {
	var watching atomic.Int32
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		events, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		if err == nil {
			watching.Add(1)
		}
		return true, events, err
	})
	return func() {
		t.Helper()
		kinds := map[string]bool{}
		for _, a := range client.Actions() {
			if a.GetVerb() == "list" {
				kinds[a.GetResource().Resource] = true
			}
		}
		Eventually(t, func() string {
			if n := int(watching.Load()); n < len(kinds) {
				return fmt.Sprintf("%d of %d kinds are watched", n, len(kinds))
			}
			return ""
		})
	}
}

// Whole compares objects in all that somebody has written, but not in what the API
// adds to each.
func Whole() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields", "ResourceVersion"), cmpopts.IgnoreTypes(metav1.TypeMeta{}),
		cmpopts.EquateEmpty(),
	}
}
