package snapshotmetadata

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestEmbedded: behind an HTTP server the service answers as alone, as long as it runs.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBackups(t, behind)
		if got := w.ask(request()); got != served {
			t.Error(got)
		}
		w.driver.OnBlocks(says(variable(20, 10), variable(0, 10)))
		if got := w.ask(request()); !strings.Contains(got, "Internal: driver "+driverName) {
			t.Error(got)
		}
		q := request()
		q.SecurityToken = strings.Repeat("x", requestSize)
		if got := w.ask(q); !strings.Contains(got, "ResourceExhausted: ") {
			t.Error(got)
		}
		w.embedded.now.Store(nil)
		if got := w.ask(request()); !strings.HasPrefix(got, "Unavailable: ") {
			t.Error(got)
		}
	})
}

// TestEmbeddedLeavesSlowClients: a client that never reads has its request no longer than the limits say, and does not
// hold up the end of the service.
func TestEmbeddedLeavesSlowClients(t *testing.T) {
	t.Parallel()
	const limit = time.Minute
	for name, c := range map[string]struct{ end, stream, request time.Duration }{
		"by the limits":    {time.Hour, limit, limit + requestLimit + reviewLimit},
		"with the service": {time.Second, time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, begun := newBackups(t, func(w *backups, vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) {
					behind(w, vs, c)
					w.opts.Limit = limit
				}), time.Now()
				ended := make(chan time.Duration, 1)
				w.driver.OnBlocks(func(_ context.Context, _ proto.Message, send sender) error {
					defer func() { ended <- time.Since(begun) }()
					return endless(send)
				})
				if _, err := w.dial().GetMetadataAllocated(t.Context(), request()); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(c.end, w.end)
				if took := <-ended; took != c.stream {
					t.Errorf("the driver's stream ended after %v", took)
				}
				kubetest.Pass(c.request - time.Since(begun))
				if w.embedded.slots.all != 0 {
					t.Errorf("%d requests are kept", w.embedded.slots.all)
				}
			})
		})
	}
}

// endless sends blocks as long as they are taken.
func endless(send sender) error {
	for at := int64(0); ; at += 1000 {
		a := &csipb.GetMetadataAllocatedResponse{
			BlockMetadataType: csipb.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: 1 << 62,
		}
		for i := range int64(1000) {
			a.BlockMetadata = append(a.BlockMetadata, &csipb.BlockMetadata{ByteOffset: (at + i) << 20, SizeBytes: 1 << 20})
		}
		if err := send(a); err != nil {
			return err
		}
	}
}

// flood is a request without end, of which it counts the bytes.
type flood struct {
	begin io.Reader
	sent  int
}

func (f *flood) Read(p []byte) (int, error) {
	n, err := f.begin.Read(p)
	if err != nil {
		n = len(p)
	}
	f.sent += n
	return n, nil
}

// TestEmbeddedReadsNoFloods: what follows a request is not read into memory, and ends it.
func TestEmbeddedReadsNoFloods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBackups(t, behind)
		w.driver.OnBlocks(func(ctx context.Context, _ proto.Message, _ sender) error {
			<-ctx.Done()
			return nil
		})
		text, err := proto.Marshal(request())
		if err != nil {
			t.Fatal(err)
		}
		f := &flood{begin: strings.NewReader(string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))) +
			string(text))}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://localhost"+Path+"GetMetadataAllocated", f)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/grpc")
		answer, err := w.http().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		synctest.Wait()
		// The HTTP server has a window of 1 MiB.
		if f.sent > 2<<20 {
			t.Errorf("%d bytes were read", f.sent)
		}
	})
}

// TestSeveralDrivers: a server of several drivers calls the one that has the snapshot, or says why it cannot.
func TestSeveralDrivers(t *testing.T) {
	t.Parallel()
	several := func(change func(w *backups, c *cluster.VolumeSnapshotContent)) func(
		*backups, *snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent,
	) {
		return func(w *backups, _ *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) {
			w.opts.Driver, w.opts.Audience = "", "backups"
			change(w, c)
		}
	}
	check(t, []answersTo{
		{"the driver of the snapshot", several(func(*backups, *cluster.VolumeSnapshotContent) {}), nil, served},
		{
			"a driver that is not there", several(func(_ *backups, c *cluster.VolumeSnapshotContent) {
				c.Spec.Driver = "gone.example.com"
			}), nil, "Unavailable: driver gone.example.com does not answer this server",
		},
		{
			"one without the capability", several(func(w *backups, c *cluster.VolumeSnapshotContent) {
				other := csitest.InMemory(w.t, csitest.Config{Name: "other.example.com"})
				w.others = append(w.others, other.Dial(csi.WithNodeOnly()))
				c.Spec.Driver = "other.example.com"
			}), nil, "FailedPrecondition: driver other.example.com does not know changed blocks (SNAPSHOT_METADATA_SERVICE)",
		},
		{
			"a snapshot on a node that is not reached", several(func(w *backups, c *cluster.VolumeSnapshotContent) {
				w.scope = volume.Scope{Node: "one", Rest: true}
				c.Annotations = map[string]string{volume.AnnProvisionedOn: "two"}
			}), nil, "FailedPrecondition: the snapshot is on node two, whose driver " + driverName +
				" this server does not reach",
		},
		{
			"one on a node that is", several(func(w *backups, c *cluster.VolumeSnapshotContent) {
				w.scope = volume.Scope{Node: "one", Rest: true}
				c.Annotations = map[string]string{volume.AnnProvisionedOn: "one"}
			}), nil, served,
		},
	})
}
