package lease

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/clientset"
)

// renewElsewhere renews a lease of another namespace until ctx ends.
func renewElsewhere(ctx context.Context, t *testing.T, client *fake.Clientset, namespace, name, holder string) {
	leases := client.CoordinationV1().Leases(namespace)
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15)}
	_, err := leases.Create(context.Background(), l, metav1.CreateOptions{})
	for ctx.Err() == nil && err == nil {
		l.Spec.RenewTime = ptr.To(metav1.NowMicro())
		_, err = leases.Update(context.Background(), l, metav1.UpdateOptions{})
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// forbid refuses to list leases of all namespaces, or to read any.
func forbid(client *fake.Clientset, verbs ...string) {
	for _, verb := range verbs {
		client.PrependReactor(verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(leaseResource(), "", errors.New("no right"))
		})
	}
}

// TestOthersCallTheDriver: who holds leases of a driver elsewhere keeps a process from calling it, as long as it lives.
func TestOthersCallTheDriver(t *testing.T) {
	const lease, own, there = "external-attacher-leader-d", "here", "there"
	for name, row := range map[string]struct {
		// in is the namespace of a lease of that name; dead says that nobody renews it.
		in, name string
		dead     bool
		elects   bool
		forbids  []string
		// refused is a part of the error, and log of the log; waits is how long it takes.
		refused, log string
		waits        time.Duration
	}{
		"a living one": {
			in: there, elects: true, refused: "pod-0 holds lease " + lease + " in namespace there", waits: 5 * time.Second,
		},
		"a living one, without election": {in: there, refused: "--beside-others", waits: 5 * time.Second},
		"a living one here":              {in: own, elects: true},
		"a living one here, without election": {
			in: own, refused: "run this one in its namespace and with leader election", waits: 5 * time.Second,
		},
		"a dead one":                {in: there, dead: true, elects: true, waits: 15 * time.Second, log: "it is over"},
		"another driver's":          {in: there, name: "external-attacher-leader-d2", elects: true},
		"another role's":            {in: there, name: "external-resizer-d", elects: true},
		"it may not look":           {in: there, elects: true, forbids: []string{"list"}, log: "may not list leases"},
		"it may not look elsewhere": {in: there, forbids: []string{"list"}, log: "from other namespaces is not known"},
		"it may look here only": {
			in: own, forbids: []string{"list"}, refused: "in namespace here", waits: 5 * time.Second,
		},
		"it may look nowhere": {in: own, forbids: []string{"list", "get"}, log: "may not list leases"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, began := clientset.New(), time.Now()
			ctx, end := context.WithCancel(t.Context())
			go renewElsewhere(ctx, t, client, row.in, cmp.Or(row.name, lease), "pod-0")
			synctest.Wait()
			if row.dead {
				end()
			}
			forbid(client, row.forbids...)
			var log bytes.Buffer
			err := (&Others{
				Client: client.CoordinationV1(), Driver: "d", Names: []string{lease},
				Namespace: own, Elects: row.elects, Log: slog.New(slog.NewTextHandler(&log, nil)),
			}).Refuse(t.Context())
			end()
			if text := fmt.Sprint(err); (err != nil) != (row.refused != "") || !strings.Contains(text, row.refused) {
				t.Errorf("%s: %v", name, err)
			}
			// It looks every second.
			if took := time.Since(began); took < row.waits || took > row.waits+time.Second {
				t.Errorf("%s: it knows that after %v", name, took)
			}
			if !strings.Contains(log.String(), row.log) {
				t.Errorf("%s: the log is\n%s", name, log.String())
			}
		})
	}
}

// TestOthersWaitForServer: a process that cannot ask for others waits until it can, and says so.
func TestOthersWaitForServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, began := clientset.New(), time.Now()
		client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return time.Since(began) < time.Minute, nil, errAway
		})
		var log bytes.Buffer
		err := (&Others{Client: client.CoordinationV1(), Log: slog.New(slog.NewTextHandler(&log, nil))}).Refuse(t.Context())
		if took := time.Since(began); err != nil || took != time.Minute {
			t.Errorf("it knows after %v: %v", took, err)
		}
		if n := strings.Count(log.String(), "waiting to know"); n != 4 || !strings.Contains(log.String(), errAway.Error()) {
			t.Errorf("the log has %d notices:\n%s", n, log.String())
		}
	})
}
