package snapshotmetadata

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	// mostStreams is how many streams there are at the same time, and mostReviews how many clients are reviewed.
	mostStreams, mostReviews = 32, 8
	// mostPerConnection is how many requests a connection may have at the same time.
	mostPerConnection = 4
	// mostOpen is how many connections are open at the same time, or requests of an Embedded, and mostPerClient how
	// many from one address.
	mostOpen, mostPerClient = 128, 64
	// requestSize and headerSize limit a request in bytes. A token has one or two thousand.
	requestSize, headerSize = 16 << 10, 16 << 10
	// requestLimit is how long a client may take to send its request, reviewLimit how long the steps before a stream may
	// take, and handshakeLimit how long a TLS handshake.
	requestLimit, reviewLimit, handshakeLimit = 10 * time.Second, 30 * time.Second, 10 * time.Second
	// window is how many bytes of a connection wait to be read.
	window = 64 << 10
	// idleLimit is how long a connection without a request is kept.
	idleLimit = time.Minute
	// goodbye is how long streams may continue when the server is asked to stop.
	goodbye = 20 * time.Second
)

// Options configure a server.
type Options struct {
	// Drivers have the snapshots.
	Drivers *csi.Set
	// Driver is the name of the only one of them; empty if there may be several.
	Driver string
	// Client is a client of the API server with Rights.
	Client kubernetes.Interface
	// Audience is the required audience of tokens; empty means that of the SnapshotMetadataService of the only driver.
	Audience string
	// Limit is how long a stream may take.
	Limit time.Duration
	// Meter counts each stream after it has ended.
	Meter func(driver, method, code string, took time.Duration)
	// Log is the log of the program.
	Log *slog.Logger
}

// Rights returns the rights that a server needs.
func Rights() []kube.Access {
	return []kube.Access{
		kube.Write("authentication.k8s.io", "tokenreviews", "create"),
		kube.Write("authorization.k8s.io", "subjectaccessreviews", "create"),
		{Group: volume.GroupMetadata, Resource: volume.ResourceMetadataServices, Verbs: []string{"get"}},
		{Group: volume.GroupSnapshot, Resource: volume.ResourceSnapshots, Verbs: []string{"get"}},
		{Group: volume.GroupSnapshot, Resource: volume.ResourceSnapshotContents, Verbs: []string{"get"}},
		{Group: volume.GroupSnapshot, Resource: volume.ResourceSnapshotClasses, Verbs: []string{"get", "list"}},
		{Resource: "secrets", Verbs: []string{"get"}},
	}
}

// Serve answers at a listener, which it closes, until ctx ends.
func Serve(ctx context.Context, l net.Listener, secure *tls.Config, o Options) error {
	g := newServer(o, grpc.Creds(credentials.NewTLS(secure)), grpc.ConnectionTimeout(handshakeLimit),
		grpc.MaxHeaderListSize(headerSize), grpc.MaxConcurrentStreams(mostPerConnection),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		// A client that never reads occupies the memory of unread answers, until its connection is too old.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleLimit, MaxConnectionAge: o.Limit, MaxConnectionAgeGrace: o.Limit,
		}))
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(limitedListener{l, newSlots(mostOpen, mostPerClient)}) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve snapshot metadata: %w", err)
	case <-ctx.Done():
	}
	late := time.AfterFunc(goodbye, g.Stop)
	defer late.Stop()
	g.GracefulStop()
	return <-ended
}

// newServer returns a gRPC server with the service, for Serve or an Embedded.
func newServer(o Options, more ...grpc.ServerOption) *grpc.Server {
	s := &server{
		Options: o, objects: kube.NewSnapshotObjects(o.Client), streams: make(chan struct{}, mostStreams),
		reviews: make(chan struct{}, mostReviews),
	}
	g := grpc.NewServer(append(more, grpc.MaxRecvMsgSize(requestSize), grpc.StreamInterceptor(punctual))...)
	api.RegisterSnapshotMetadataServer(g, s)
	healthpb.RegisterHealthServer(g, health{})
	return g
}

// health answers that the service serves: it listens only then.
type health struct {
	healthpb.UnimplementedHealthServer
}

// Check answers whether the service serves.
func (health) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// server is a running server. It is safe for concurrent use.
type server struct {
	api.UnimplementedSnapshotMetadataServer
	Options

	objects kube.SnapshotObjects
	// streams and reviews hold a value for each that is under way.
	streams, reviews chan struct{}
}

// serve answers one request: it checks that the client may have the answer, prepares the call to the driver, and has
// stream pass on the driver's answers.
func (s *server) serve(
	ctx context.Context, method string, a ask, stream func(ctx context.Context, t target) error,
) (err error) {
	begun, driver := time.Now(), s.Driver
	defer func() {
		code := status.Code(err)
		s.Meter(driver, method, code.String(), time.Since(begun))
		log := s.Log.With("method", method, "driver", driver, "took", time.Since(begun).Round(time.Millisecond))
		if a.problem() == "" {
			log = log.With("snapshot", a.Namespace+"/"+a.Snapshot)
		}
		// Errors that clients can cause at will would fill the log.
		level := slog.LevelWarn
		if slices.Contains([]codes.Code{
			codes.OK, codes.Canceled, codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied,
			codes.ResourceExhausted,
		}, code) {
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "a client asked for changed blocks", "code", code.String(), "err", status.Convert(err).Message())
	}()
	if problem := a.problem(); problem != "" {
		return status.Error(codes.InvalidArgument, problem)
	}
	t, err := s.prepare(ctx, a)
	if err != nil {
		return err
	}
	driver = t.driver.Name
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		return status.Errorf(codes.ResourceExhausted, "%d streams are open, which is the limit; "+
			"try again later", mostStreams)
	}
	return s.limited(ctx, func(ctx context.Context) error { return stream(ctx, t) })
}

// limited calls a function that relays a stream, and returns when the time limit is over. The function may then still
// hang in a client that does not read: the end of the request ends it, too.
func (s *server) limited(ctx context.Context, stream func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- stream(limited) }()
	var err error
	select {
	case err = <-ended:
	case <-limited.Done():
	}
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case limited.Err() != nil:
		return status.Errorf(codes.DeadlineExceeded, "the stream has not ended within %v; go on with starting_offset at "+
			"the end of its last block", s.Limit)
	}
	return err
}

// prepare finds out who the client is, what it may read, and what to request from the driver.
func (s *server) prepare(ctx context.Context, a ask) (target, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	select {
	case s.reviews <- struct{}{}:
		defer func() { <-s.reviews }()
	case <-ctx.Done():
		return target{}, status.Error(codes.Unavailable, "too many clients are being reviewed; try again later")
	}
	user, err := s.authenticate(ctx, a.Token)
	if err != nil {
		return target{}, err
	}
	if err := s.authorize(ctx, user, a); err != nil {
		return target{}, err
	}
	return s.find(ctx, a)
}
