package snapshotmetadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// sender sends an answer of a driver.
type sender = func(*csipb.GetMetadataAllocatedResponse) error

// served is what a client gets that may have it.
const served = "0+10 20+10 | OK"

// refusal is the answer to each token that is not valid, for whatever reason.
const refusal = "Unauthenticated: the token is not valid for the audience of this service"

// answersTo is a row of a table: the difference from a valid request, and the answer.
type answersTo struct {
	of     string
	change func(w *backups, vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent)
	ask    func(q *api.GetMetadataAllocatedRequest)
	want   string
}

// check compares the answers, and looks for tokens and Secrets in the log.
func check(t *testing.T, rows []answersTo) {
	t.Helper()
	for _, c := range rows {
		t.Run(c.of, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, q := newBackups(t, c.change), request()
				if c.ask != nil {
					c.ask(q)
				}
				if got := w.ask(q); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				for _, secret := range []string{token, password} {
					if strings.Contains(w.log.String(), secret) {
						t.Errorf("%s is in the log:\n%s", secret, w.log.String())
					}
				}
			})
		})
	}
}

// TestClients: a client with a token for the audience and the right to get the snapshot is served; all others are
// refused before the driver is called.
func TestClients(t *testing.T) {
	t.Parallel()
	w := func(change func(w *backups)) func(*backups, *snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent) {
		return func(w *backups, _ *snapshotv1.VolumeSnapshot, _ *cluster.VolumeSnapshotContent) { change(w) }
	}
	check(t, []answersTo{
		{"a token for the audience of the service", nil, nil, served},
		{
			"the audience is given by the flag, and the service's does not count",
			w(func(w *backups) { w.opts.Audience, w.tokens[token] = "ours", "ours" }), nil, served,
		},
		{"a token for the API server", w(func(w *backups) { w.tokens[token] = "kubernetes" }), nil, refusal},
		{"a token for another service", w(func(w *backups) { w.opts.Audience = "ours" }), nil, refusal},
		{"an unknown token", nil, func(q *api.GetMetadataAllocatedRequest) { q.SecurityToken = "x" }, refusal},
		{"an API server that knows no audiences", w(func(w *backups) { w.tokens[token] = "" }), nil, refusal},
		{
			"a service without an audience", w(func(w *backups) {
				w.api.Set(&cluster.SnapshotMetadataService{ObjectMeta: metav1.ObjectMeta{Name: driverName}})
			}), nil, "Unavailable: the server could not find the audience of tokens; its log says why",
		},
		{
			"the service is not announced", w(func(w *backups) {
				w.api.PrependReactor("get", volume.ResourceMetadataServices, fails(apierrors.NewNotFound(resource(), "x")))
			}), nil, "Unavailable: the server could not find the audience of tokens; its log says why",
		},
		{
			"who may not get the snapshot", w(func(w *backups) { w.refuses = "no role \x1b[2Jallows it" }), nil,
			"PermissionDenied: user backup may not get VolumeSnapshot team/monday: no role [2Jallows it",
		},
		{
			"a namespace in which the client has no rights", nil,
			func(q *api.GetMetadataAllocatedRequest) { q.Namespace = "other" },
			"PermissionDenied: user backup may not get VolumeSnapshot other/monday",
		},
	})
}

// TestRequests: an invalid request is refused before any call to the API server.
func TestRequests(t *testing.T) {
	t.Parallel()
	var rows []answersTo
	for _, c := range []struct {
		ask  func(q *api.GetMetadataAllocatedRequest)
		want string
	}{
		{func(q *api.GetMetadataAllocatedRequest) { q.SecurityToken = "" }, "security_token is empty"},
		{func(q *api.GetMetadataAllocatedRequest) { q.Namespace = "" }, "namespace is not a name of a namespace"},
		{func(q *api.GetMetadataAllocatedRequest) { q.Namespace = "a/b" }, "namespace is not a name of a namespace"},
		{func(q *api.GetMetadataAllocatedRequest) { q.SnapshotName = "" }, "snapshot_name is not a name of a VolumeSnapshot"},
		{
			func(q *api.GetMetadataAllocatedRequest) { q.SnapshotName = "../../secrets/x" },
			"snapshot_name is not a name of a VolumeSnapshot",
		},
		{func(q *api.GetMetadataAllocatedRequest) { q.StartingOffset = -1 }, "starting_offset is negative"},
		{func(q *api.GetMetadataAllocatedRequest) { q.MaxResults = -1 }, "max_results is negative"},
	} {
		rows = append(rows, answersTo{of: c.want, ask: c.ask, want: "InvalidArgument: " + c.want})
	}
	check(t, rows)
	for text, a := range map[string]ask{
		"base_snapshot_id is empty":                              {Snapshot: "s"},
		"target_snapshot_name is not a name of a VolumeSnapshot": {Base: "b"},
		"base_snapshot_id has 1025 bytes, 1024 are allowed":      {Snapshot: "s", Base: strings.Repeat("b", 1025)},
		"": {Snapshot: "s", Base: "b"},
	} {
		a.Token, a.Namespace, a.Delta = "t", "n", true
		if got := a.problem(); got != text {
			t.Errorf("%+v: %q, want %q", a, got, text)
		}
	}
}

// TestObjects: a snapshot is found by its objects in the API, and nothing else is revealed.
func TestObjects(t *testing.T) {
	t.Parallel()
	type (
		snap    = *snapshotv1.VolumeSnapshot
		content = *cluster.VolumeSnapshotContent
	)
	check(t, []answersTo{
		{
			"a snapshot that does not exist", nil, func(q *api.GetMetadataAllocatedRequest) { q.SnapshotName = "tuesday" },
			"NotFound: VolumeSnapshot team/tuesday does not exist",
		},
		{
			"a snapshot without a status", func(_ *backups, vs snap, _ content) { vs.Status = nil }, nil,
			"Unavailable: VolumeSnapshot team/monday is not ready to use",
		},
		{
			"a snapshot that is not ready", func(_ *backups, vs snap, _ content) { vs.Status.ReadyToUse = nil }, nil,
			"Unavailable: VolumeSnapshot team/monday is not ready to use",
		},
		{
			"a snapshot without a content",
			func(_ *backups, vs snap, _ content) { vs.Status.BoundVolumeSnapshotContentName = nil }, nil,
			"Unavailable: VolumeSnapshot team/monday is not ready to use",
		},
		{
			"a content that is gone",
			func(_ *backups, vs snap, _ content) { vs.Status.BoundVolumeSnapshotContentName = ptr.To("x") }, nil,
			"Unavailable: the server could not read the VolumeSnapshotContent; its log says why",
		},
		{
			"a content that is no name",
			func(_ *backups, vs snap, _ content) { vs.Status.BoundVolumeSnapshotContentName = ptr.To("../x") }, nil,
			"Unavailable: the server could not read the VolumeSnapshotContent; its log says why",
		},
		{
			"the content of another namespace",
			func(_ *backups, _ snap, c content) { c.Spec.VolumeSnapshotRef.Namespace = "other" }, nil,
			"FailedPrecondition: VolumeSnapshotContent content is not bound to VolumeSnapshot team/monday",
		},
		{
			"the content of an earlier snapshot of the name",
			func(_ *backups, _ snap, c content) { c.Spec.VolumeSnapshotRef.UID = "0" }, nil,
			"FailedPrecondition: VolumeSnapshotContent content is not bound to VolumeSnapshot team/monday",
		},
		{
			"a snapshot of another driver", func(_ *backups, _ snap, c content) { c.Spec.Driver = "x.example.com" }, nil,
			"InvalidArgument: VolumeSnapshot team/monday belongs to driver x.example.com, and this is the service of " +
				driverName,
		},
		{
			"a content without a handle", func(_ *backups, _ snap, c content) { c.Status.SnapshotHandle = nil }, nil,
			"Unavailable: VolumeSnapshotContent content is not ready to use",
		},
		{
			"a Secret that is gone",
			func(_ *backups, _ snap, c content) { recordSecret(c, "gone") }, nil,
			"Unavailable: the server could not read the Secret for the driver; its log says why",
		},
		{
			"a class that is gone", func(_ *backups, vs snap, c content) {
				given(c)
				vs.Spec.VolumeSnapshotClassName = ptr.To("gone")
			}, nil, "Unavailable: the server could not read the class of the VolumeSnapshot; its log says why",
		},
		{
			"a class that is no name", func(_ *backups, vs snap, c content) {
				given(c)
				vs.Spec.VolumeSnapshotClassName = ptr.To("../volumesnapshotcontents/x")
			}, nil, "Unavailable: the server could not read the class of the VolumeSnapshot; its log says why",
		},
	})
}

// TestDriverIsAsked: the driver receives the handles, the request's limits, and the Secret that csi-snapshotter would
// send.
func TestDriverIsAsked(t *testing.T) {
	t.Parallel()
	login := map[string]string{"key": password}
	for _, c := range []struct {
		of      string
		change  func(w *backups, vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent)
		secrets map[string]string
	}{
		{"a content that records no Secret", nil, nil},
		{"a content that records a Secret", func(_ *backups, _ *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) {
			recordSecret(c, "login")
		}, login},
		{
			"a content that was there before: the class has the Secret",
			func(_ *backups, vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) {
				given(c)
				vs.Spec.VolumeSnapshotClassName = ptr.To("usual")
			}, login,
		},
		{
			"one without a class: the default class has the Secret",
			func(w *backups, _ *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) {
				given(c)
				_, _, class, _ := objects()
				class.Annotations = map[string]string{volume.AnnDefaultSnapshotClass: "true"}
				w.api.Set(class)
			}, login,
		},
		{
			"one without a class where none is the default",
			func(_ *backups, _ *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) { given(c) }, nil,
		},
	} {
		t.Run(c.of, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newBackups(t, c.change)
				q := request()
				q.StartingOffset, q.MaxResults = 5, 7
				if got := w.ask(q); got != served {
					t.Error(got)
				}
				delta, err := w.dial().GetMetadataDelta(t.Context(), &api.GetMetadataDeltaRequest{
					SecurityToken: token, Namespace: "team", TargetSnapshotName: "monday", BaseSnapshotId: "snap-0",
				})
				if err != nil {
					t.Fatal(err)
				}
				a, err := delta.Recv()
				if err != nil || len(a.GetBlockMetadata()) != 2 || a.GetVolumeCapacityBytes() != 100 ||
					a.GetBlockMetadataType() != api.BlockMetadataType_VARIABLE_LENGTH {
					t.Errorf("%v, %v", a, err)
				}
				if _, err := delta.Recv(); !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				w.driver.Called(
					&csipb.GetMetadataAllocatedRequest{
						SnapshotId: "snap-1", StartingOffset: 5, MaxResults: 7, Secrets: c.secrets,
					},
					&csipb.GetMetadataDeltaRequest{
						BaseSnapshotId: "snap-0", TargetSnapshotId: "snap-1", MaxResults: mostBlocks, Secrets: c.secrets,
					})
				want := []string{driverName + " MetadataAllocated OK", driverName + " MetadataDelta OK"}
				if !slices.Equal(w.metered, want) {
					t.Errorf("counted are %q", w.metered)
				}
			})
		})
	}
}

// TestHostileDrivers: a client receives the valid answers, and then an error that describes the invalid one.
func TestHostileDrivers(t *testing.T) {
	t.Parallel()
	const breaks = "Internal: driver " + driverName + ": its answer breaks the CSI specification: "
	var rows []answersTo
	for _, c := range []struct {
		of     string
		answer func(ctx context.Context, r proto.Message, send sender) error
		want   string
	}{
		{"goes backwards", says(variable(20, 10), variable(0, 10)), "20+10 | " + breaks +
			"a block begins at 0, and the one before it ends at 30"},
		{"overlaps", says(variable(0, 10, 5, 10)), breaks + "a block begins at 5, and the one before it ends at 10"},
		{"says a block twice", says(variable(0, 10), variable(0, 10)), "0+10 | " + breaks +
			"a block begins at 0, and the one before it ends at 10"},
		{"goes beyond the volume", says(variable(90, 11)), breaks +
			"a block has 11 bytes at 90, volume_capacity_bytes is 100"},
		{"has sizes that overflow", says(variable(1, 1<<62, 2, 1<<62)), breaks +
			"a block has 4611686018427387904 bytes at 1, volume_capacity_bytes is 100"},
		{"has an empty block", says(variable(0, 0)), breaks + "the block at 0 has no bytes"},
		{"changes its mind about the volume", says(variable(0, 10), &csipb.GetMetadataAllocatedResponse{
			BlockMetadataType: csipb.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: 50,
		}), "0+10 | " + breaks + "block_metadata_type or volume_capacity_bytes differs between two answers of a stream"},
		{"never ends, with empty answers", func(
			ctx context.Context, _ proto.Message, send sender,
		) error {
			for ctx.Err() == nil {
				_ = send(variable())
			}
			return nil
		}, strings.Repeat("| ", 1000) + breaks + "the stream does not end"},
		{"says too much at a time", says(variable(slices.Repeat([]int64{0, 1}, 100_000)...)), "Internal: driver " +
			driverName + ": the driver's answer breaks the CSI specification: grpc: received message larger than max " +
			"(400004 vs. 132096)"},
		{"quotes the Secret", func(
			_ context.Context, r proto.Message, _ sender,
		) error {
			key := r.(*csipb.GetMetadataAllocatedRequest).GetSecrets()["key"]
			return status.Error(codes.Unavailable, "cannot log in with "+key+"\n\x1b[2J")
		}, "Unavailable: driver " + driverName + ": cannot log in with *** [2J"},
		{"has no answer", func(context.Context, proto.Message, sender) error {
			return status.Error(codes.FailedPrecondition, "it is being scrubbed")
		}, "FailedPrecondition: driver " + driverName + ": it is being scrubbed"},
	} {
		rows = append(rows, answersTo{of: c.of, want: c.want, change: func(
			w *backups, _ *snapshotv1.VolumeSnapshot, content *cluster.VolumeSnapshotContent,
		) {
			recordSecret(content, "login")
			w.driver.OnBlocks(c.answer)
		}})
	}
	check(t, rows)
}

// TestEndless: an endless, slow stream is ended at the time limit for streams, together with the driver's stream.
func TestEndless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, begun := newBackups(t, nil), time.Now()
		ended := make(chan time.Duration, 1)
		w.driver.OnBlocks(func(ctx context.Context, _ proto.Message, send sender) error {
			defer func() { ended <- time.Since(begun) }()
			for at := int64(0); ; at++ {
				if err := send(variable(at, 1)); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(time.Minute):
				}
			}
		})
		want := "0+1 | 1+1 | 2+1 | 3+1 | 4+1 | 5+1 | 6+1 | 7+1 | 8+1 | 9+1 | DeadlineExceeded: the stream has not ended " +
			"within 10m0s; go on with starting_offset at the end of its last block"
		if got := w.ask(request()); !strings.HasPrefix(got, want[:40]) || !strings.HasSuffix(got, want[60:]) {
			t.Error(got)
		}
		if took := <-ended; took != 10*time.Minute {
			t.Errorf("the driver's stream ended after %v", took)
		}
	})
}

// TestSlowClient: the driver is read no faster than the client reads, and a client that never reads is dropped when the
// time of its stream is over.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, all = 1000, 2000
		w, sent, ended := newBackups(t, nil), 0, make(chan struct{}, 2)
		w.driver.OnBlocks(func(_ context.Context, _ proto.Message, send sender) error {
			defer func() { ended <- struct{}{} }()
			for sent = 0; sent < all; sent++ {
				a := &csipb.GetMetadataAllocatedResponse{
					BlockMetadataType: csipb.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: all * size << 20,
				}
				for i := range int64(size) {
					a.BlockMetadata = append(a.BlockMetadata, &csipb.BlockMetadata{
						ByteOffset: (int64(sent)*size + i) << 20, SizeBytes: 1 << 20,
					})
				}
				if err := send(a); err != nil {
					return err
				}
			}
			return nil
		})
		slow, err := w.dial().GetMetadataAllocated(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// One answer is 14 KiB; the windows and buffers of the two connections take some.
		if most := 40; sent > most {
			t.Errorf("the driver has sent %d answers of which the client has read none, want at most %d", sent, most)
		}
		if got := read(slow); strings.Count(got, "|") != all || !strings.HasSuffix(got, " OK") {
			t.Errorf("the client read %d answers: %s", strings.Count(got, "|"), got[max(0, len(got)-200):])
		}
		<-ended
		begun := time.Now()
		if _, err := w.dial().GetMetadataAllocated(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		<-ended
		if took := time.Since(begun); took != w.opts.Limit {
			t.Errorf("a stream that is not read ended after %v", took)
		}
	})
}

// TestManyStreams: the number of streams is limited, and one that ends makes room for another.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBackups(t, nil)
		w.driver.OnBlocks(func(ctx context.Context, _ proto.Message, _ sender) error {
			<-ctx.Done()
			return nil
		})
		first, leave := context.WithCancel(t.Context())
		var client api.SnapshotMetadataClient
		for i := range mostStreams {
			if i%mostPerConnection == 0 {
				client = w.dial()
			}
			if _, err := client.GetMetadataAllocated(first, request()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		want := fmt.Sprintf("ResourceExhausted: %d streams are open, which is the limit; try again later",
			mostStreams)
		if got := w.ask(request()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		leave()
		synctest.Wait()
		w.driver.OnBlocks(says(variable(0, 10, 20, 10)))
		if got := w.ask(request()); got != served {
			t.Error(got)
		}
	})
}

// TestReviewFails: a review that fails is not a refusal of the client, who learns nothing of the reason.
func TestReviewFails(t *testing.T) {
	t.Parallel()
	for verb, want := range map[string]string{
		"tokenreviews":         "Unavailable: the server could not review the token; its log says why",
		"subjectaccessreviews": "Unavailable: the server could not review what the client may read; its log says why",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newBackups(t, nil)
			w.api.PrependReactor("create", verb, fails(apierrors.NewInternalError(errors.New("etcd quotes "+token))))
			if got := w.ask(request()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if log := w.log.String(); strings.Contains(log, token) || !strings.Contains(log, "etcd quotes") {
				t.Error(log)
			}
		})
	}
}

// fails returns a reaction that fails.
func fails(err error) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err }
}

func resource() schema.GroupResource { return schema.GroupResource{Resource: "x"} }

// recordSecret records the Secret of a content, as its creator does.
func recordSecret(c *cluster.VolumeSnapshotContent, name string) {
	c.Annotations = map[string]string{
		volume.AnnSnapshotSecretName: name, volume.AnnSnapshotSecretNamespace: "team",
	}
}

// given makes a content a pre-provisioned one.
func given(c *cluster.VolumeSnapshotContent) {
	c.Spec.Source.VolumeHandle, c.Spec.Source.SnapshotHandle = nil, ptr.To("snap-1")
}
