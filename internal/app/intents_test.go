package app

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestMayKeepIntents: each right on the log's Leases is needed, and is waited for a little.
func TestMayKeepIntents(t *testing.T) {
	place := driverIntents("d.example.com", "", "ns").Own
	for name, row := range map[string]struct {
		lacks string
		// given is when it is given; 0 is never.
		given time.Duration
		want  string
		takes time.Duration
	}{
		"all rights":         {},
		"a later one":        {lacks: "update", given: 4500 * time.Millisecond, takes: 5 * time.Second},
		"one is missing":     {lacks: "delete", want: "delete leases in namespace ns", takes: 10 * time.Second},
		"another is missing": {lacks: "create", want: "create leases in namespace ns", takes: 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, began := &fake.Clientset{}, time.Now()
			client.AddReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
				asked := r.Spec.ResourceAttributes
				if named := asked.Verb == "update" || asked.Verb == "delete"; named != (asked.Name == place.Name+"-1") {
					t.Errorf("%s: asked for %s of %q", name, asked.Verb, asked.Name)
				}
				r.Status.Allowed = asked.Verb != row.lacks || row.given > 0 && time.Since(began) > row.given
				return true, r, nil
			})
			k := intentKeeper{client: client, place: place}
			if got := k.await(t.Context()); got != row.want || time.Since(began) != row.takes {
				t.Errorf("%s: %q after %v", name, got, time.Since(began))
			}
		})
	}
}

// TestNoneIsOverlooked: a process that keeps its intents in memory does not begin beside those that an earlier one has
// kept; where it may not read them, there are none.
func TestNoneIsOverlooked(t *testing.T) {
	place := driverIntents("d.example.com", "", "ns").Own
	lease := func(log string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: log + "-1", Labels: map[string]string{volume.LabelIntents: log},
		}}
	}
	hidden := clientset.New(lease(place.Name))
	hidden.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", nil)
	})
	for name, row := range map[string]struct {
		client *fake.Clientset
		want   string
	}{
		"nothing is there": {clientset.New(), ""},
		"another's":        {clientset.New(lease("other")), ""},
		"its own": {
			clientset.New(lease(place.Name)), "intents of an earlier start are in Lease ns/" + place.Name +
				"-1, and this process may not resolve them: give it the right to update leases",
		},
		"it may not be read": {hidden, ""},
	} {
		err := intentKeeper{client: row.client, place: place}.checkNoneKept(t.Context(), "update leases")
		if text := fmt.Sprint(err); row.want == "" && err != nil || row.want != "" && text != row.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlacesOfIntents: every node has its own log, whose name can be a label.
func TestPlacesOfIntents(t *testing.T) {
	seen := map[string]bool{}
	for _, node := range []string{
		"", "web-1", "web.1", "a-node-with-a-name-that-is-longer-than-any-label-may-be.example.com",
	} {
		for _, driver := range []string{"d", "d.example.com", "a-driver-with-a-name-that-is-rather-long.example.com"} {
			name := driverIntents(driver, node, "ns").Own.Name
			if seen[name] || len(name) > 63 {
				t.Errorf("driver %s on node %q: %s", driver, node, name)
			}
			seen[name] = true
		}
	}
}
