package external_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/standalonetest"
)

// TestLeaderDies: no write fails while the leading member dies, and each is carried out once.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 3)
	s := open(t, m.Options)
	record := filepath.Join(t.TempDir(), "reached")
	if err := errors.Join(s.Claim(t.Context(), []byte("ours")), s.Begin(t.Context(), record)); err != nil {
		t.Fatal(err)
	}
	client, longest := s.Client(), time.Duration(0)
	defer client.Close()
	objects := kubernetes.Client{Client: client}
	const writes, death = 300, 100
	for i := range writes {
		if i == death {
			m.Leader(t).Kill()
		}
		began, key := time.Now(), fmt.Sprint("/volplane/here/pods/", i)
		r, err := objects.OptimisticPut(t.Context(), key, []byte("made"), 0, kubernetes.PutOptions{GetOnFailure: true})
		if err != nil || !r.Succeeded {
			t.Fatalf("write %d: %+v, %v", i, r, err)
		}
		longest = max(longest, time.Since(began))
	}
	t.Logf("the longest write took %v", longest.Round(time.Millisecond))
	all, err := client.Get(t.Context(), "/volplane/here/pods/", clientv3.WithPrefix())
	if err != nil || all.Count != writes {
		t.Errorf("there are %d keys: %v", all.Count, err)
	}
	for _, kv := range all.Kvs {
		if kv.Version != 1 {
			t.Errorf("%s was written %d times", kv.Key, kv.Version)
		}
	}
}

// TestNewerWrites: a control plane stops using the store when a newer program has changed the format of the keys.
func TestNewerWrites(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 1)
	s, record := open(t, m.Options), filepath.Join(t.TempDir(), "reached")
	if err := errors.Join(s.Claim(t.Context(), []byte("ours")), s.Begin(t.Context(), record)); err != nil {
		t.Fatal(err)
	}
	client := s.Client()
	defer client.Close()
	if _, err := client.Put(t.Context(), "/volplane/here/.volplane/identity", `{"format":2,"ca":"x"}`); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.Err():
		if !errors.Is(err, external.ErrNewer) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("a newer program writes to the store, and it is still used")
	}
	if _, err := client.Put(t.Context(), "/volplane/here/pods/x", "x"); !apierrors.IsServiceUnavailable(err) {
		t.Error("the store is written:", err)
	}
}
