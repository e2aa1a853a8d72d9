package apiserver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"

	"volplane.dev/volplane/standalone/standalonetest"
)

// TestStoragesDoNotConnect: etcd's socket has the connections of health checks, and no others.
func TestStoragesDoNotConnect(t *testing.T) {
	s := standalonetest.Start(t)
	socket := filepath.Join(filepath.Dir(s.AdminKubeconfig()), "etcd", "client.sock")
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	const listener, checks = 1, 2
	if got := strings.Count(string(sockets), socket); got < listener || got > listener+checks {
		t.Errorf("%d sockets at %s, want the listener's and those of %d health checks", got, socket, checks)
	}
}

// TestEtcdTellsProgress: etcd reports progress for lists from the watch cache; otherwise the server would send a read
// to etcd.
func TestEtcdTellsProgress(t *testing.T) {
	standalonetest.Start(t)
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			return feature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress), nil
		})
	if err != nil {
		t.Error("the storages do not ask etcd for progress of watches:", err)
	}
}
