package exchange

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// xfs returns a directory of the test, and a filesystem below it that shares blocks between files.
func xfs(t *testing.T) (dir, at string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cbt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "fs")
	for _, do := range []func() error{
		func() error { return os.WriteFile(image, nil, 0o600) },
		func() error { return os.Truncate(image, 512<<20) },
		func() error { return os.Mkdir(at, 0o700) },
		exec.Command("mkfs.xfs", "-q", image).Run,
		exec.Command("mount", "-o", "loop", image, at).Run,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { testkit.Unmount(t, at) })
	return dir, at
}

// blocksReader reads the changed blocks of the bundled driver's snapshots, as a backup program does.
type blocksReader struct {
	t          *testing.T
	ctx        context.Context //nolint:containedctx // that of the test
	api        kubernetes.Interface
	kubeconfig string
	// pool is the driver's.
	pool string
	// handles are the driver's snapshots, by their names.
	handles map[string]string
}

func (b *blocksReader) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// write writes to the image of a volume.
func (b *blocksReader) write(id, word string, at, length int) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.pool, "volumes", id, "disk.img"), os.O_WRONLY, 0)
	b.must(err)
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte(word), length/len(word)), int64(at))
	b.must(err)
	b.must(f.Sync())
}

// discard discards a part of the image of a volume.
func (b *blocksReader) discard(id string, at, length int64) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.pool, "volumes", id, "disk.img"), os.O_WRONLY, 0)
	b.must(err)
	defer f.Close()
	b.must(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, length))
	b.must(f.Sync())
}

// scatter writes to each other block of the image of a volume.
func (b *blocksReader) scatter(id string, size int64) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.pool, "volumes", id, "disk.img"), os.O_WRONLY, 0)
	b.must(err)
	defer f.Close()
	const block = 4 << 10
	for at := int64(0); at < size; at += 2 * block {
		_, err = f.WriteAt(bytes.Repeat([]byte("odd."), block/4), at)
		b.must(err)
	}
	b.must(f.Sync())
}

// hold begins to read a snapshot in many streams, and leaves the most of each unread.
func (b *blocksReader) hold(streams int, target string) {
	b.t.Helper()
	client, token := b.client(backupAccount)
	for i := range streams {
		if i%4 == 0 {
			client, _ = b.client(backupAccount)
		}
		recv, err := b.open(client, token, target, "")
		b.must(err)
		_, err = recv()
		b.must(err)
	}
}

// upstreamPrograms is the directory of upstream's csi-snapshot-metadata, snapshot-metadata-lister and
// snapshot-metadata-verifier, which are compared if the variable is set: a module that they need is not in every Go
// proxy, so that only a checkout of their repository can be built.
func upstreamPrograms() string { return os.Getenv("UPSTREAM") }

// theirs runs a program of upstream's that reads blocks as an account, and returns its output.
func (b *blocksReader) theirs(program, account, target, base string, flags ...string) string {
	b.t.Helper()
	args := append([]string{
		"-kubeconfig=" + b.kubeconfig, "-namespace=default", "-snapshot=" + target, "-previous-snapshot=" + base,
		"-service-account=" + account, "-service-account-namespace=default", "-max-results=2",
	}, flags...)
	out, _ := exec.CommandContext(b.ctx, filepath.Join(upstreamPrograms(), program), args...).CombinedOutput()
	return string(out)
}

// read reads blocks as an account, and calls each for them.
func (b *blocksReader) read(account, target, base string, each func(at, size int64) error) error {
	b.t.Helper()
	client, token := b.client(account)
	recv, err := b.open(client, token, target, base)
	for err == nil {
		var blocks []*api.BlockMetadata
		if blocks, err = recv(); err == nil && len(blocks) > 2 {
			b.t.Errorf("an answer has %d blocks", len(blocks))
		}
		for _, one := range blocks {
			if err == nil {
				err = each(one.GetByteOffset(), one.GetSizeBytes())
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// client returns a client of the service, found as clients find it, and a token of an account for it.
func (b *blocksReader) client(account string) (api.SnapshotMetadataClient, string) {
	b.t.Helper()
	var service cluster.SnapshotMetadataService
	said, err := b.api.Discovery().RESTClient().Get().AbsPath("apis", volume.GroupMetadata, volume.MetadataVersion,
		volume.ResourceMetadataServices, volume.LocalDriver).Do(b.ctx).Raw()
	b.must(err)
	b.must(json.Unmarshal(said, &service))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(service.Spec.CACert)
	conn, err := grpc.NewClient(service.Spec.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	b.must(err)
	b.t.Cleanup(func() { _ = conn.Close() })
	token, err := b.api.CoreV1().ServiceAccounts("default").CreateToken(b.ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{service.Spec.Audience}},
	}, metav1.CreateOptions{})
	b.must(err)
	return api.NewSnapshotMetadataClient(conn), token.Status.Token
}

// open begins to read, and returns a function that reads the next blocks.
func (b *blocksReader) open(
	client api.SnapshotMetadataClient, token, target, base string,
) (func() ([]*api.BlockMetadata, error), error) {
	if base == "" {
		stream, err := client.GetMetadataAllocated(b.ctx, &api.GetMetadataAllocatedRequest{
			SecurityToken: token, Namespace: "default", SnapshotName: target, MaxResults: 2,
		})
		return func() ([]*api.BlockMetadata, error) {
			a, err := stream.Recv()
			return a.GetBlockMetadata(), err
		}, err
	}
	stream, err := client.GetMetadataDelta(b.ctx, &api.GetMetadataDeltaRequest{
		SecurityToken: token, Namespace: "default", TargetSnapshotName: target, BaseSnapshotId: b.handles[base],
		MaxResults: 2,
	})
	return func() ([]*api.BlockMetadata, error) {
		a, err := stream.Recv()
		return a.GetBlockMetadata(), err
	}, err
}

// listed returns the blocks that an account reads, or the error.
func (b *blocksReader) listed(account, target, base string) string {
	b.t.Helper()
	if upstreamPrograms() != "" {
		var rows []string
		out := b.theirs("snapshot-metadata-lister", account, target, base)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 5 && f[2] == "VARIABLE_LENGTH" {
				rows = append(rows, f[3]+"+"+f[4])
			}
		}
		return cmp.Or(strings.Join(rows, " "), out)
	}
	var rows []string
	err := b.read(account, target, base, func(at, size int64) error {
		rows = append(rows, fmt.Sprintf("%d+%d", at, size))
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return strings.Join(rows, " ")
}

// verify copies the blocks of a snapshot to a device, which must then have the same content. The device begins as the
// base, or empty.
func (b *blocksReader) verify(target, base string) {
	b.t.Helper()
	path := func(name string) string { return filepath.Join(b.pool, "snapshots", b.handles[name], "disk.img") }
	device := filepath.Join(b.t.TempDir(), "device")
	want, err := os.ReadFile(path(target))
	b.must(err)
	begin := make([]byte, len(want))
	if base != "" {
		begin, err = os.ReadFile(path(base))
		b.must(err)
	}
	b.must(os.WriteFile(device, begin, 0o600))
	if upstreamPrograms() != "" {
		if out := b.theirs("snapshot-metadata-verifier", backupAccount, target, base, "-src="+path(target),
			"-tgt="+device); out != "" {
			b.t.Errorf("from %q to %s: %s", base, target, out)
		}
	} else {
		b.must(b.read(backupAccount, target, base, func(at, size int64) error {
			copy(begin[at:at+size], want[at:])
			return nil
		}))
		b.must(os.WriteFile(device, begin, 0o600))
	}
	if got, err := os.ReadFile(device); err != nil || !bytes.Equal(got, want) {
		b.t.Errorf("what was copied from %q to %s differs: %v", base, target, err)
	}
}
