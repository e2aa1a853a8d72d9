package node

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/node/health"
)

// TestSeen: what was seen may be asked for before the agent runs, and a driver that is not registered any more tells
// nothing of its storage.
func TestSeen(t *testing.T) {
	t.Parallel()
	a, err := New(Options{Name: "n1", RootDir: t.TempDir(), Drivers: csi.NewSet()})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Seen(); len(got.Volumes)+len(got.Storage)+got.UnknownMounts+got.UnreadableRecords != 0 {
		t.Errorf("before it runs %+v", got)
	}
	d := csitest.Start(t, csitest.Full()).Dial()
	a.Drivers.Put(d)
	a.seen.storageOf(d.Name, []storagev1.StorageHealthCondition{{Status: "StorageDegraded", Reason: "PoolFull"}})
	a.seen.storageOf("gone.example", []storagev1.StorageHealthCondition{{Status: "StorageDegraded"}})
	a.seen.unknown(3)
	a.seen.unreadable(2)
	a.seen.begin(health.New(health.Options{}))
	got := a.Seen()
	if got.UnknownMounts != 3 || got.UnreadableRecords != 2 || len(got.Storage) != 1 ||
		got.Storage[d.Name][0].Reason != "PoolFull" {
		t.Errorf("seen %+v", got)
	}
	a.seen.storageOf(d.Name, nil)
	if got := a.Seen().Storage[d.Name]; len(got) != 0 {
		t.Errorf("what was mended is still told: %v", got)
	}
}
