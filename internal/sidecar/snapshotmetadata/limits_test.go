package snapshotmetadata

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/cluster"
)

// behind has the service behind an HTTP server.
func behind(w *backups, _ *snapshotv1.VolumeSnapshot, _ *cluster.VolumeSnapshotContent) {
	w.embedded = NewEmbedded()
}

// TestSlots: one client cannot take all of the slots, and one that is given back is free again.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := newSlots(3, 2)
	first, second := s.take("10.0.0.1:1"), s.take("10.0.0.1:2")
	if first == nil || second == nil || s.take("10.0.0.1:3") != nil {
		t.Error("a client has more or less than its two slots")
	}
	if s.take("[fd00::1]:1") == nil || s.take("[fd00::2]:1") != nil {
		t.Error("there are more or less than three slots")
	}
	first()
	first()
	if s.take("10.0.0.1:4") == nil || s.take("10.0.0.1:5") != nil {
		t.Error("a slot was given back more or less than once")
	}
}

// TestManyConnections: those of one client are limited, and one that ends makes room for another.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBackups(t, nil)
		first := w.connect()
		_ = w.silent(first)
		for range mostPerClient - 1 {
			_ = w.silent(w.connect())
		}
		synctest.Wait()
		if got := w.ask(request()); !strings.Contains(got, "Unavailable") {
			t.Errorf("connection %d: %s", mostPerClient+1, got)
		}
		_ = first.Close()
		synctest.Wait()
		if got := w.ask(request()); got != served {
			t.Error(got)
		}
	})
}

// TestSilentClients: a request that does not arrive is ended, and has nothing afterwards. Behind an HTTP server the
// requests of one client are limited.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*backups, *snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent){
		"alone": nil, "behind an HTTP server": behind,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, begun := newBackups(t, change), time.Now()
				conn := w.connect()
				var ends []func() codes.Code
				most := mostPerConnection
				if w.embedded != nil {
					most = mostPerClient
				}
				for range most {
					ends = append(ends, w.silent(conn))
				}
				synctest.Wait()
				if w.embedded != nil {
					if got := w.ask(request()); !strings.Contains(got, "Unavailable") {
						t.Errorf("request %d: %s", mostPerClient+1, got)
					}
				}
				for _, end := range ends {
					if got := end(); got != codes.DeadlineExceeded {
						t.Errorf("a request that does not arrive: %s", got)
					}
				}
				if took := time.Since(begun); took != requestLimit {
					t.Errorf("it was awaited for %v", took)
				}
				if got := w.ask(request()); got != served {
					t.Error(got)
				}
			})
		})
	}
}
