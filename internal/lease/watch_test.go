package app

import (
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// TestSharedWatch: watches of single leases are one watch at the server, each gets the last change of its own lease,
// they end with that watch, and a later one begins anew.
func TestSharedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var servers []*watch.FakeWatcher
		client.PrependWatchReactor("leases", func(clienttesting.Action) (bool, watch.Interface, error) {
			servers = append(servers, watch.NewFake())
			return true, servers[len(servers)-1], nil
		})
		shared := newSharedWatch(client.CoordinationV1().Leases("default"))
		open := func(name string) watch.Interface {
			w, err := shared.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		holds := func(name, holder string) *coordinationv1.Lease {
			return &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)},
			}
		}
		a, other, b := open("a"), open("a"), open("b")
		servers[0].Modify(holds("a", "1"))
		servers[0].Modify(holds("c", "1"))
		servers[0].Modify(holds("a", "2"))
		synctest.Wait()
		for _, w := range []watch.Interface{a, other} {
			if l := (<-w.ResultChan()).Object.(*coordinationv1.Lease); *l.Spec.HolderIdentity != "2" {
				t.Errorf("the holder is %s, want the last one", *l.Spec.HolderIdentity)
			}
		}
		select {
		case e := <-b.ResultChan():
			t.Errorf("b has %v", e)
		case <-time.After(time.Second):
		}
		a.Stop()
		a.Stop()
		servers[0].Stop()
		for _, w := range []watch.Interface{a, other, b} {
			if _, open := <-w.ResultChan(); open {
				t.Error("it goes on although nothing is watched")
			}
			w.Stop()
		}
		again := open("a")
		if len(servers) != 2 {
			t.Errorf("%d watches at the server, want one after the other", len(servers))
		}
		servers[1].Modify(holds("a", "3"))
		if l := (<-again.ResultChan()).Object.(*coordinationv1.Lease); *l.Spec.HolderIdentity != "3" {
			t.Errorf("the holder is %s", *l.Spec.HolderIdentity)
		}
		again.Stop()
		synctest.Wait()
	})
}
