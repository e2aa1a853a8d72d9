package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/clientset"
)

// watched is an API server whose watches a test plays.
type watched struct {
	*Client
	// open holds the watches at the server, and asked their field selectors.
	open  []*watch.FakeWatcher
	asked []string
}

func newWatched(forbidden bool) *watched {
	w, client := &watched{}, clientset.New()
	client.PrependWatchReactor("leases", func(a clienttesting.Action) (bool, watch.Interface, error) {
		fields := a.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String()
		w.asked = append(w.asked, fields)
		if forbidden && fields == "" {
			return true, nil, apierrors.NewForbidden(leaseResource(), "", errors.New("no right"))
		}
		w.open = append(w.open, watch.NewFake())
		return true, w.open[len(w.open)-1], nil
	})
	w.Client = newClient(client.CoordinationV1().Leases("default"), "default", "me", nil)
	return w
}

// followed returns a channel of the holders that a follower of a lease is shown.
func (w *watched) followed(ctx context.Context, name string) <-chan string {
	holders := make(chan string, 10)
	go w.follow(ctx, &follower{name: name, see: func(now *coordinationv1.Lease) {
		holder, _ := holderOf(now)
		holders <- holder
	}})
	synctest.Wait()
	return holders
}

func heldBy(name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)},
	}
}

// TestSharedWatch: those that follow leases share one watch at the server, each is shown the changes of its own lease,
// another watch follows the one that has ended, and the last one ends with the last that follows.
func TestSharedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(false)
		ctx, end := context.WithCancel(t.Context())
		ctxB, endB := context.WithCancel(t.Context())
		a, other, b := w.followed(ctx, "a"), w.followed(ctx, "a"), w.followed(ctxB, "b")
		show := func(at int) {
			t.Helper()
			w.open[at].Modify(heldBy("a", "1"))
			w.open[at].Modify(heldBy("c", "2"))
			w.open[at].Delete(heldBy("a", "3"))
			synctest.Wait()
			for _, holders := range []<-chan string{a, other} {
				if first, second := <-holders, <-holders; first != "1" || second != "" {
					t.Errorf("the holders are %q and %q", first, second)
				}
			}
			if len(a)+len(other)+len(b) > 0 {
				t.Error("a lease is shown that is not followed")
			}
		}
		show(0)
		w.open[0].Stop()
		<-time.After(followPause + time.Millisecond)
		show(1)
		end()
		synctest.Wait()
		if w.open[1].IsStopped() {
			t.Error("the watch has ended, though one still follows")
		}
		w.open[1].Modify(heldBy("b", "4"))
		if holder := <-b; holder != "4" || len(w.open) != 2 {
			t.Errorf("the holder is %q after %d watches", holder, len(w.open))
		}
		endB()
		synctest.Wait()
		if !w.open[1].IsStopped() {
			t.Error("the watch goes on although nothing follows")
		}
	})
}

// TestWatchOfOneLease: a process that may watch single leases only watches each of its own by its name.
func TestWatchOfOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(true)
		a, b := w.followed(t.Context(), "a"), w.followed(t.Context(), "b")
		w.open[0].Modify(heldBy("a", "1"))
		w.open[1].Modify(heldBy("b", "2"))
		if one, two := <-a, <-b; one != "1" || two != "2" {
			t.Errorf("the holders are %q and %q", one, two)
		}
		if want := []string{"", "metadata.name=a", "", "metadata.name=b"}; !slices.Equal(w.asked, want) {
			t.Errorf("watched with %q", w.asked)
		}
	})
}

// TestWithoutWatch: a process that may not watch reads its leases.
func TestWithoutWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		client.PrependWatchReactor("leases", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, apierrors.NewForbidden(leaseResource(), "", errors.New("no right"))
		})
		leases := client.CoordinationV1().Leases("default")
		w := &watched{Client: newClient(leases, "default", "me", nil)}
		holders := w.followed(t.Context(), "a")
		if _, err := leases.Create(t.Context(), heldBy("a", "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(followPause + time.Millisecond)
		synctest.Wait()
		if len(holders) != 1 || <-holders != "1" {
			t.Error("the lease is not read")
		}
	})
}
