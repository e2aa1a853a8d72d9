package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// blocksPlane is a control plane whose bundled driver has its pool on xfs.
type blocksPlane struct {
	*blocksReader
	*plane.Plane
}

func newBlocksPlane(ctx context.Context, t *testing.T) *blocksPlane {
	t.Helper()
	_, at := xfs(t)
	p, err := plane.Start(ctx, filepath.Join(at, "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop() })
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	b := &blocksPlane{&blocksReader{
		t: t, ctx: ctx, api: client, kubeconfig: p.Kubeconfig(), pool: p.Pool(), handles: map[string]string{},
	}, p}
	for _, text := range []string{metadataRole(t, "snapshot-metadata-client-cluster-role.yaml"), metadataObjects} {
		b.kubectl(text, "apply", "-f", "-")
	}
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: volume.LocalDriver,
	}, metav1.CreateOptions{})
	b.must(err)
	return b
}

// kubectl runs kubectl as the administrator.
func (b *blocksPlane) kubectl(input string, args ...string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.ctx, plane.Bin("kubectl"), append([]string{"--kubeconfig", b.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// volume creates a raw block claim, and returns the id of its volume.
func (b *blocksPlane) volume(claim string) (id string) {
	b.t.Helper()
	c := plane.Claim(claim, "32Mi")
	c.Spec.StorageClassName, c.Spec.VolumeMode = ptr.To("now"), ptr.To(corev1.PersistentVolumeBlock)
	_, err := b.api.CoreV1().PersistentVolumeClaims("default").Create(b.ctx, c, metav1.CreateOptions{})
	b.must(err)
	upstream.Eventually(b.ctx, b.t, func() string {
		c, err := b.api.CoreV1().PersistentVolumeClaims("default").Get(b.ctx, claim, metav1.GetOptions{})
		b.must(err)
		if c.Status.Phase != corev1.ClaimBound {
			return "the claim is " + string(c.Status.Phase)
		}
		v, err := b.api.CoreV1().PersistentVolumes().Get(b.ctx, c.Spec.VolumeName, metav1.GetOptions{})
		b.must(err)
		id = v.Spec.CSI.VolumeHandle
		return ""
	})
	return id
}

// snapshot takes a snapshot of a claim.
func (b *blocksPlane) snapshot(claim, name string) {
	b.t.Helper()
	b.kubectl(fmt.Sprintf(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": {"name": %q, "namespace": "default"}, "spec": {"source": {"persistentVolumeClaimName": %q}}}`, name,
		claim), "apply", "-f", "-")
	upstream.Eventually(b.ctx, b.t, func() string {
		var s snapshotv1.VolumeSnapshot
		b.must(json.Unmarshal([]byte(b.kubectl("", "get", "volumesnapshot", name, "-n", "default", "-o", "json")), &s))
		if s.Status == nil || !ptr.Deref(s.Status.ReadyToUse, false) {
			return "the snapshot is not ready"
		}
		b.handles[name] = b.kubectl("", "get", "volumesnapshotcontent", *s.Status.BoundVolumeSnapshotContentName,
			"-o", "jsonpath={.status.snapshotHandle}")
		return ""
	})
}

// asks returns the answer to a request with a token.
func (b *blocksPlane) asks(token, target, base string) string {
	b.t.Helper()
	client, _ := b.client(backupAccount)
	recv, err := b.open(client, token, target, base)
	for err == nil {
		_, err = recv()
	}
	if errors.Is(err, io.EOF) {
		return "served"
	}
	return err.Error()
}

// TestChangedBlocksOfAPlane: a control plane announces and serves the changed blocks of a raw block claim's snapshots
// at the address of its API server, to a client, upstream's if its programs exist, that finds the service as in a
// cluster. Whoever has no right to the snapshot, or no token for the service, is refused. A control plane that was
// killed serves again.
func TestChangedBlocksOfAPlane(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	b := newBlocksPlane(ctx, t)
	const mib = 1 << 20
	id := b.volume("c")
	for i := range 5 {
		b.write(id, "old.", (2*i+1)*mib, 64<<10)
	}
	b.snapshot("c", "monday")
	b.write(id, "new.", mib+16<<10, 16<<10)
	b.write(id, "new.", 31*mib, mib)
	b.discard(id, 5*mib, 64<<10)
	b.snapshot("c", "tuesday")
	b.volume("d")
	b.snapshot("d", "other")

	for _, c := range []struct{ account, target, base, want string }{
		{backupAccount, "monday", "", "1048576+65536 3145728+65536 5242880+65536 7340032+65536 9437184+65536"},
		{backupAccount, "tuesday", "", "1048576+65536 3145728+65536 7340032+65536 9437184+65536 32505856+1048576"},
		{backupAccount, "tuesday", "monday", "1064960+16384 5242880+65536 32505856+1048576"},
		{"stranger", "tuesday", "monday", "code = PermissionDenied"},
		{backupAccount, "tuesday", "other", "code = InvalidArgument"},
	} {
		if got := b.listed(c.account, c.target, c.base); !strings.Contains(got, c.want) {
			t.Errorf("%s, from %q to %s: %s, want %s", c.account, c.base, c.target, got, c.want)
		}
	}
	b.verify("monday", "")
	b.verify("tuesday", "monday")

	for what, c := range map[string]struct{ audience, want string }{
		"the API server": {"", "code = Unauthenticated"}, "another service": {"backups", "code = Unauthenticated"},
		"this service": {volume.AudienceMetadata, "served"},
	} {
		request := &authenticationv1.TokenRequest{}
		if c.audience != "" {
			request.Spec.Audiences = []string{c.audience}
		}
		r, err := b.api.CoreV1().ServiceAccounts("default").CreateToken(ctx, backupAccount, request, metav1.CreateOptions{})
		b.must(err)
		if got := b.asks(r.Status.Token, "monday", ""); !strings.Contains(got, c.want) {
			t.Errorf("a token for %s: %s, want %s", what, got, c.want)
		}
	}
	for token, want := range map[string]string{"": "code = InvalidArgument", "eyJh.x.y": "code = Unauthenticated"} {
		if got := b.asks(token, "monday", ""); !strings.Contains(got, want) {
			t.Errorf("token %q: %s, want %s", token, got, want)
		}
	}

	b.Kill()
	again, err := plane.Start(ctx, b.Dir)
	b.must(err)
	t.Cleanup(again.Stop)
	b.api, err = again.Client()
	b.must(err)
	upstream.Eventually(ctx, t, func() string {
		if got := b.listed(backupAccount, "monday", ""); !strings.HasPrefix(got, "1048576+65536 ") {
			return got
		}
		return ""
	})
}
