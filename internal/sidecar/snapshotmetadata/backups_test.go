package snapshotmetadata

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/testkit/logged"
	"volplane.dev/volplane/internal/volume"
)

const (
	driverName = "test.csi.example.com"
	// token is that of the backup program, which may read the snapshots of its namespace.
	token = "eyJhbGciOiJSUzI1NiJ9.backup-program.signature"
	// password is what the driver needs for the storage.
	password = "correct-horse-battery"
)

// backups is a server with its cluster and its driver.
type backups struct {
	t      *testing.T
	api    *kubetest.API
	driver *csitest.Driver
	log    logged.Text
	// tokens are the audiences of tokens; their user is called backup.
	tokens map[string]string
	// refuses is what the API server answers about rights; "" lets the user backup read the namespace team.
	refuses string
	opts    Options
	metered []string
	// scope is that of the driver, and others are further ones.
	scope  volume.Scope
	others []*csi.Driver
	// end ends the service.
	end func()
	// embedded serves behind an HTTP server, unless it is nil.
	embedded *Embedded
	// connect returns a new connection to the server.
	connect func() *grpc.ClientConn
	// http returns a client that knows nothing of gRPC.
	http func() *http.Client
}

func (w *backups) dial() api.SnapshotMetadataClient {
	return api.NewSnapshotMetadataClient(w.connect())
}

// objects are a snapshot that is ready, its content, its class, and the service of the driver.
func objects() (*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent, *cluster.VolumeSnapshotClass,
	*cluster.SnapshotMetadataService,
) {
	vs := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "monday", UID: "1"},
		Status: &snapshotv1.VolumeSnapshotStatus{
			ReadyToUse: ptr.To(true), BoundVolumeSnapshotContentName: ptr.To("content"),
		},
	}
	content := &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "content"}}
	content.Spec.Driver, content.Spec.Source.VolumeHandle = driverName, ptr.To("vol-1")
	content.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: "team", Name: "monday", UID: "1"}
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{
		ReadyToUse: ptr.To(true), SnapshotHandle: ptr.To("snap-1"),
	}
	class := &cluster.VolumeSnapshotClass{}
	class.Name, class.Driver = "usual", driverName
	class.Parameters = map[string]string{
		"csi.storage.k8s.io/snapshotter-secret-name":      "login",
		"csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
	}
	service := &cluster.SnapshotMetadataService{ObjectMeta: metav1.ObjectMeta{Name: driverName}}
	service.Spec.Audience = "backups"
	return vs, content, class, service
}

// newBackups starts everything. change may change the objects before.
func newBackups(
	t *testing.T, change func(w *backups, vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent),
) *backups {
	t.Helper()
	vs, content, class, service := objects()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "login"}, Data: map[string][]byte{"key": []byte(password)},
	}
	w := &backups{t: t, tokens: map[string]string{token: "backups"}}
	w.opts.Limit, w.opts.Drivers, w.opts.Driver = 10*time.Minute, csi.NewSet(), driverName
	w.driver = csitest.InMemory(t, csitest.Config{Plugin: csi.PluginCapabilities{SnapshotMetadata: true}})
	w.driver.OnBlocks(says(variable(0, 10, 20, 10)))
	w.api = kubetest.NewAPI(t, class, secret, service)
	if change != nil {
		change(w, vs, content)
	}
	w.api.Set(vs, content)
	w.api.PrependReactor("create", "tokenreviews", w.reviewToken)
	w.api.PrependReactor("create", "subjectaccessreviews", w.reviewAccess)
	for _, d := range append(w.others, w.driver.Dial(csi.WithNodeOnly())) {
		w.opts.Drivers.Put(d.In(w.scope))
	}
	w.opts.Client = kubetest.Customized(w.api.Client(Rights))
	w.opts.Log = slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.opts.Meter = func(driver, method, code string, _ time.Duration) {
		w.metered = append(w.metered, driver+" "+method+" "+code)
	}
	w.serve()
	return w
}

// serve serves over TLS and a connection in memory until the test ends.
func (w *backups) serve() {
	w.t.Helper()
	pair, pool := newCertificate(w.t, "one")
	l := bufconn.Listen(64 << 10)
	ctx, end := context.WithCancel(w.t.Context())
	w.end = end
	ended := make(chan error, 1)
	go func() { ended <- w.serveAt(ctx, l, &tls.Config{Certificates: []tls.Certificate{pair}}) }()
	w.t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.connect = func() *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///localhost",
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "localhost"})),
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	w.http = func() *http.Client {
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "localhost"}, ForceAttemptHTTP2: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) },
		}
		w.t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
}

// serveAt serves at a listener, as the sidecar or behind the server of other things.
func (w *backups) serveAt(ctx context.Context, l net.Listener, secure *tls.Config) error {
	if w.embedded == nil {
		return Serve(ctx, l, secure, w.opts)
	}
	s := &http.Server{Handler: w.embedded, TLSConfig: secure, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeTLS(l, "", "") }()
	w.embedded.Run(ctx, w.opts)
	if err := s.Close(); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// silent begins a request that never arrives, and returns how it ends.
func (w *backups) silent(conn *grpc.ClientConn) (end func() codes.Code) {
	w.t.Helper()
	desc := &api.SnapshotMetadata_ServiceDesc.Streams[0]
	stream, err := conn.NewStream(w.t.Context(), desc, Path+desc.StreamName)
	if err != nil {
		w.t.Fatal(err)
	}
	return func() codes.Code {
		return status.Code(stream.RecvMsg(&api.GetMetadataAllocatedResponse{}))
	}
}

// reviewToken answers as an API server does.
func (w *backups) reviewToken(a clienttesting.Action) (bool, runtime.Object, error) {
	r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
	audience, known := w.tokens[r.Spec.Token]
	switch {
	case !known:
		r.Status.Error = "[invalid bearer token " + r.Spec.Token + "]"
	case audience == "":
		// This one knows no audiences.
		r.Status.Authenticated, r.Status.User.Username = true, "backup"
	case !slices.Contains(r.Spec.Audiences, audience):
		r.Status.Error = fmt.Sprintf("token audiences [%q] is invalid for the audiences %q", audience, r.Spec.Audiences)
	default:
		r.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{audience},
			User: authenticationv1.UserInfo{Username: "backup", Groups: []string{"programs"}},
		}
	}
	return true, r, nil
}

func (w *backups) reviewAccess(a clienttesting.Action) (bool, runtime.Object, error) {
	r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
	asked := r.Spec.ResourceAttributes
	r.Status.Allowed = w.refuses == "" && r.Spec.User == "backup" && slices.Equal(r.Spec.Groups, []string{"programs"}) &&
		asked.Verb == "get" && asked.Group == "snapshot.storage.k8s.io" && asked.Resource == "volumesnapshots" &&
		asked.Namespace == "team"
	r.Status.Reason = w.refuses
	return true, r, nil
}

// request is that of a client that may have the answer.
func request() *api.GetMetadataAllocatedRequest {
	return &api.GetMetadataAllocatedRequest{SecurityToken: token, Namespace: "team", SnapshotName: "monday"}
}

// ask requests the blocks of a snapshot, and returns them and the end of the stream.
func (w *backups) ask(q *api.GetMetadataAllocatedRequest) string {
	w.t.Helper()
	stream, err := w.dial().GetMetadataAllocated(w.t.Context(), q)
	if err != nil {
		return err.Error()
	}
	return read(stream)
}

// read reads a stream to its end.
func read(stream interface {
	Recv() (*api.GetMetadataAllocatedResponse, error)
},
) string {
	var out []string
	for {
		a, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return strings.Join(append(out, "OK"), " ")
		}
		if err != nil {
			s := status.Convert(err)
			return strings.Join(append(out, s.Code().String()+": "+s.Message()), " ")
		}
		for _, b := range a.GetBlockMetadata() {
			out = append(out, fmt.Sprintf("%d+%d", b.GetByteOffset(), b.GetSizeBytes()))
		}
		out = append(out, "|")
	}
}

// says returns a driver that sends these answers and ends the stream.
func says(all ...*csipb.GetMetadataAllocatedResponse) csitest.Blocks {
	return func(_ context.Context, _ proto.Message, send func(*csipb.GetMetadataAllocatedResponse) error) error {
		for _, a := range all {
			if err := send(a); err != nil {
				return err
			}
		}
		return nil
	}
}

// variable returns an answer with blocks, given as pairs of offset and size, of a volume of 100 bytes.
func variable(numbers ...int64) *csipb.GetMetadataAllocatedResponse {
	a := &csipb.GetMetadataAllocatedResponse{
		BlockMetadataType: csipb.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: 100,
	}
	for pair := range slices.Chunk(numbers, 2) {
		a.BlockMetadata = append(a.BlockMetadata, &csipb.BlockMetadata{ByteOffset: pair[0], SizeBytes: pair[1]})
	}
	return a
}

// newCertificate returns a certificate of localhost, and who trusts it.
func newCertificate(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost", name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}
