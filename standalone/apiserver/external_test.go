package apiserver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/standalonetest"
)

func TestMain(m *testing.M) { standalonetest.Main(m) }

func outside(t *testing.T, dir string, o external.Options) apiserver.Options {
	t.Helper()
	return apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0", NoSync: true, External: o, Version: "v1"}
}

func create(ctx context.Context, c kubernetes.Interface, name string) error {
	_, err := c.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// TestExternalStore: a control plane over an etcd that others run works as over its own, and knows it without the flags
// when it starts again.
func TestExternalStore(t *testing.T) {
	m := standalonetest.StartMembers(t, 3)
	dir := shortDir(t)
	s := start(t, outside(t, dir, m.Options))
	if err := create(t.Context(), standalonetest.Client(t, s, ""), "kept"); err != nil {
		t.Fatal(err)
	}
	if r := s.Room(); r.Members == nil || r.Members.All != 3 || r.Members.Prefix != "/volplane/here" || r.Refuses {
		t.Errorf("%+v", r)
	}
	s.Stop()
	if _, err := os.Stat(filepath.Join(dir, "etcd")); !os.IsNotExist(err) {
		t.Error("it has an etcd of its own, too:", err)
	}
	s = start(t, outside(t, dir, external.Options{}))
	defer s.Stop()
	c := standalonetest.Client(t, s, "")
	if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestExternalStoreWithoutQuorum: a control plane whose store loses its quorum reports it within five seconds, writes
// nothing, and continues on its own when the quorum is back.
func TestExternalStoreWithoutQuorum(t *testing.T) {
	m := standalonetest.StartMembers(t, 3)
	s := start(t, outside(t, shortDir(t), m.Options))
	defer s.Stop()
	c := standalonetest.Client(t, s, "")
	if err := create(t.Context(), c, "kept"); err != nil {
		t.Fatal(err)
	}
	m.Member(1).Kill()
	m.Member(2).Kill()
	losesQuorum(t, s, c)
	m.Member(1).Start()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) { return create(ctx, c, "again") == nil, nil }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"kept": true, "again": true, "refused": false} {
		_, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
		if (err == nil) != want || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// losesQuorum waits until writes report that there is no quorum, and requires reads and the report to agree.
func losesQuorum(t *testing.T, s *apiserver.Server, c kubernetes.Interface) {
	t.Helper()
	const words = "the store has no quorum: 1 of 3 members answers"
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			begin := time.Now()
			err := create(ctx, c, "in-flight")
			if took := time.Since(begin); err == nil || took > 5*time.Second {
				return false, fmt.Errorf("a write without a quorum ended after %s: %w", took, err)
			}
			return strings.Contains(err.Error(), words), nil
		}); err != nil {
		t.Fatal(err)
	}
	_, list := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	for what, err := range map[string]error{"a write": create(t.Context(), c, "refused"), "a list": list} {
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if r := s.Room(); !r.Refuses || r.Reason != string(volume.ReasonNoQuorum) || !strings.Contains(r.Message, words) {
		t.Errorf("%+v", r)
	}
	if err := s.Answers(t.Context()); err != nil {
		t.Error("a restart would give the store no quorum: ", err)
	}
}

// TestExternalStoreIsRefused: nothing is written to a store that belongs to another control plane, and no control plane
// starts empty when it has had volumes.
func TestExternalStoreIsRefused(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	own := shortDir(t)
	s := start(t, apiserver.Options{DataDir: own, Listen: "127.0.0.1:0", NoSync: true})
	s.Stop()
	first := shortDir(t)
	start(t, outside(t, first, m.Options)).Stop()
	elsewhere := m.Options
	elsewhere.Prefix = "/volplane/elsewhere"
	lost := shortDir(t)
	if err := os.WriteFile(filepath.Join(lost, "admin.kubeconfig"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	half := m.Options
	half.KeyFile = ""
	for name, c := range map[string]struct {
		dir  string
		at   external.Options
		says string
	}{
		"another authority":    {shortDir(t), m.Options, "/volplane/here belongs to the one whose certificate authority"},
		"an etcd of its own":   {own, elsewhere, "move them with volplane migrate-store"},
		"another prefix":       {first, elsewhere, "are below /volplane/here in the store"},
		"objects that are not": {lost, elsewhere, "so this control plane has had objects"},
		"half of the flags":    {shortDir(t), half, "--etcd-keyfile belong together"},
	} {
		s, err := apiserver.Start(t.Context(), outside(t, c.dir, c.at))
		if err == nil {
			s.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
	start(t, outside(t, first, m.Options)).Stop()
}

// TestOlderExternalStore: a store that lacks recorded data is treated as a restored backup.
func TestOlderExternalStore(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	dir := shortDir(t)
	start(t, outside(t, dir, m.Options)).Stop()
	record := filepath.Join(dir, "reached")
	later := `{"cluster":"another","revision":1000000,"at":"2026-11-29T12:00:00Z"}`
	if err := os.WriteFile(record, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, outside(t, dir, m.Options))
	defer s.Stop()
	said, err := standalonetest.Client(t, s, "").CoreV1().ConfigMaps(volume.NamespaceSystem).Get(t.Context(),
		volume.ConfigRestored, metav1.GetOptions{})
	if err != nil || said.Data[volume.RestoredLacks] != "2026-11-29T12:00:00Z" {
		t.Errorf("%+v, %v", said, err)
	}
	if _, pending, err := backup.Pending(dir); err != nil || pending {
		t.Error("it is said again with each start:", err)
	}
}
