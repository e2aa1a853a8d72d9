package exchange

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// metadataAccount is the service account of the program, and backupAccount that of its client.
const metadataAccount, backupAccount = "csi-snapshot-metadata", "backup"

// metadataObjects are the accounts, their rights by upstream's manifests, and a snapshot class.
const metadataObjects = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-snapshot-metadata, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: backup, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: stranger, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metadata}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-snapshot-metadata-runner}
subjects: [{kind: ServiceAccount, name: csi-snapshot-metadata, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: client}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-snapshot-metadata-client-runner}
subjects: [{kind: ServiceAccount, name: backup, namespace: default}]
`

// metadataResource is the custom resource with which clients find the service, as in upstream's 1.1.
const metadataResource = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: snapshotmetadataservices.cbt.storage.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-csi/external-snapshot-metadata/pull/2"}
spec:
  group: cbt.storage.k8s.io
  scope: Cluster
  names: {kind: SnapshotMetadataService, plural: snapshotmetadataservices, singular: snapshotmetadataservice}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [address, audience, caCert]
            properties:
              address: {type: string}
              audience: {type: string}
              caCert: {type: string, format: byte}
`

// classRights are the rights that upstream's program needs beyond upstream's role, and a class without which it serves
// nothing.
const classRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: classes}
rules: [{apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: classes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: classes}
subjects: [{kind: ServiceAccount, name: csi-snapshot-metadata, namespace: default}]
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: usual, annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: DRIVER
deletionPolicy: Delete
`

// metadataWorld is a cluster with the bundled driver, whose pool shares blocks.
type metadataWorld struct {
	*cluster.Installation
	*blocksReader
	audit, socket string
	driver        *csi.Driver
}

func newMetadataWorld(ctx context.Context, t *testing.T) *metadataWorld {
	t.Helper()
	c, log := cluster.AuditedCluster(t)
	w := &metadataWorld{
		Installation: &cluster.Installation{Cluster: c, T: t, Ctx: ctx, Base: "metadata", Space: "default"}, audit: log,
		blocksReader: &blocksReader{
			t: t, ctx: ctx, api: c.Client, kubeconfig: c.AdminKubeconfig(), handles: map[string]string{},
		},
	}
	c.ServeSnapshots(ctx, t)
	for _, text := range []string{
		metadataResource, metadataRole(t, "snapshot-metadata-cluster-role.yaml"),
		metadataRole(t, "snapshot-metadata-client-cluster-role.yaml"), metadataObjects,
	} {
		c.Kubectl(ctx, t, text, "apply", "-f", "-")
	}
	c.Kubectl(ctx, t, "", "wait", "crd", "snapshotmetadataservices.cbt.storage.k8s.io", "--for=condition=Established")
	w.serveDriver()
	return w
}

// metadataRole returns a role of upstream's manifests.
func metadataRole(t *testing.T, file string) string {
	t.Helper()
	const module = "github.com/kubernetes-csi/external-snapshot-metadata"
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// serveDriver serves the bundled driver with a pool on xfs.
func (w *metadataWorld) serveDriver() {
	w.T.Helper()
	dir, at := xfs(w.T)
	w.pool, w.socket = filepath.Join(at, "pool"), filepath.Join(dir, "csi.sock")
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- local.Serve(ctx, local.Options{
			NodeID: "n1", PoolDir: w.pool, Endpoint: w.socket, Log: slog.New(slog.DiscardHandler),
		})
	}()
	w.T.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			w.T.Error(err)
		}
	})
	var err error
	w.driver, err = csi.Await(w.Ctx, w.socket, func(error) {})
	w.Must(err)
	w.T.Cleanup(func() { _ = w.driver.Close() })
}

// snapshot takes a snapshot, and creates its objects.
func (w *metadataWorld) snapshot(id, name string) {
	w.T.Helper()
	s, err := w.driver.ControllerClient().CreateSnapshot(w.Ctx, &csipb.CreateSnapshotRequest{
		Name: name, SourceVolumeId: id,
	})
	w.Must(err)
	handle := s.GetSnapshot().GetSnapshotId()
	w.handles[name] = handle
	w.Kubectl(w.Ctx, w.T, fmt.Sprintf(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": {"name": %q, "namespace": "default"}, "spec": {"source": {"persistentVolumeClaimName": "c"}}}`, name),
		"apply", "-f", "-")
	uid := strings.TrimSpace(w.KubectlSays(w.Ctx, w.T, "", "get", "volumesnapshot", name, "--namespace=default",
		"--output=jsonpath={.metadata.uid}"))
	w.Kubectl(w.Ctx, w.T, fmt.Sprintf(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
		"metadata": {"name": "content-%[1]s"}, "spec": {"driver": %[2]q, "deletionPolicy": "Retain",
		"source": {"volumeHandle": %[3]q}, "volumeSnapshotRef": {"kind": "VolumeSnapshot", "namespace": "default",
		"name": %[1]q, "uid": %[4]q}}}`, name, volume.LocalDriver, id, uid), "apply", "-f", "-")
	w.Kubectl(w.Ctx, w.T, "", "patch", "volumesnapshotcontent", "content-"+name, "--subresource=status", "--type=merge",
		fmt.Sprintf(`--patch={"status": {"readyToUse": true, "snapshotHandle": %q}}`, handle))
	w.Kubectl(w.Ctx, w.T, "", "patch", "volumesnapshot", name, "--namespace=default", "--subresource=status",
		"--type=merge", fmt.Sprintf(`--patch={"status": {"readyToUse": true, "boundVolumeSnapshotContentName":
		"content-%s"}}`, name))
}

// announce says where the driver's changed blocks are served.
func (w *metadataWorld) announce(address, audience string) {
	w.T.Helper()
	authority, err := os.ReadFile(w.Path("ca.crt"))
	w.Must(err)
	w.Kubectl(w.Ctx, w.T, fmt.Sprintf(`{"apiVersion": "cbt.storage.k8s.io/v1beta1", "kind": "SnapshotMetadataService",
		"metadata": {"name": %q}, "spec": {"address": %q, "audience": %q, "caCert": %q}}`, volume.LocalDriver, address,
		audience, base64.StdEncoding.EncodeToString(authority)), "apply", "-f", "-")
}

// serve starts the program, under its own name or ours, and returns its address.
func (w *metadataWorld) serve(program string, flags ...string) (*upstream.Program, string) {
	w.T.Helper()
	address, health := plane.FreeAddress("127.0.0.1"), plane.FreeAddress("127.0.0.1")
	_, port, _ := strings.Cut(address, ":")
	args := append([]string{
		"--csi-address=" + w.socket, "--kubeconfig=" + w.Identity(metadataAccount), "--port=" + port,
		"--http-endpoint=" + health, "--tls-cert=" + w.Path("serving.crt"), "--tls-key=" + w.Path("serving.key"),
	}, flags...)
	if program == "volplane" {
		args = append([]string{metadataAccount}, args...)
	}
	p := upstream.Start(w.T, program, args...)
	upstream.Eventually(w.Ctx, w.T, func() string {
		r, err := http.Get("http://" + health + "/health") //nolint:noctx // of this machine
		if err != nil {
			return err.Error()
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return r.Status
		}
		return ""
	})
	return p, address
}

// TestSnapshotMetadata: a client, upstream's if its programs exist, reads the changed blocks of the bundled driver
// through volplane, as through upstream's csi-snapshot-metadata; what it copies is what the snapshot holds. With the
// rights of upstream's manifests, the API server refuses no request; and whose token is for another audience, or who
// may not read the snapshot, is refused.
func TestSnapshotMetadata(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	w := newMetadataWorld(ctx, t)
	const mib = 1 << 20
	v, err := w.driver.ControllerClient().CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: "v", CapacityRange: &csipb.CapacityRange{RequiredBytes: 32 * mib},
		VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, true, "", nil),
		},
	})
	w.Must(err)
	id := v.GetVolume().GetVolumeId()
	for i := range 5 {
		w.write(id, "old.", (2*i+1)*mib, 64<<10)
	}
	w.snapshot(id, "monday")
	w.write(id, "new.", mib+16<<10, 16<<10)
	w.write(id, "new.", 31*mib, mib)
	w.discard(id, 5*mib, 64<<10)
	w.snapshot(id, "tuesday")

	programs := []string{"volplane"}
	if upstreamPrograms() != "" {
		programs = append(programs, filepath.Join(upstreamPrograms(), metadataAccount))
	}
	for _, program := range programs {
		if program != "volplane" {
			w.Kubectl(ctx, t, strings.ReplaceAll(classRights, "DRIVER", volume.LocalDriver), "apply", "-f", "-")
		}
		p, address := w.serve(program)
		w.announce(address, "backups")
		for _, c := range []struct{ account, target, base, want string }{
			{backupAccount, "monday", "", "1048576+65536 3145728+65536 5242880+65536 7340032+65536 9437184+65536"},
			{backupAccount, "tuesday", "", "1048576+65536 3145728+65536 7340032+65536 9437184+65536 32505856+1048576"},
			{backupAccount, "tuesday", "monday", "1064960+16384 5242880+65536 32505856+1048576"},
			{"stranger", "tuesday", "monday", "code = PermissionDenied"},
		} {
			if got := w.listed(c.account, c.target, c.base); !strings.Contains(got, c.want) {
				t.Errorf("%s as %s, from %q to %s: %s, want %s", program, c.account, c.base, c.target, got, c.want)
			}
		}
		w.verify("monday", "")
		w.verify("tuesday", "monday")
		p.End()
		p, address = w.serve(program, "--audience=others")
		w.announce(address, "backups")
		if got := w.listed(backupAccount, "monday", ""); !strings.Contains(got, "code = Unauthenticated") {
			t.Errorf("%s: a token for another audience: %s", program, got)
		}
		p.End()
		if program == "volplane" {
			w.checkRefused()
			w.checkMemory(id)
		}
	}
}

// checkMemory requires that a stream, and each of as many as are served at the same time, takes little memory while its
// client does not read: that of the process itself (RssAnon), which is not a file that the kernel can read again.
func (w *metadataWorld) checkMemory(id string) {
	w.T.Helper()
	const streams, most, mostOfEach = 32, 20 << 20, 2 << 20
	w.scatter(id, 32<<20)
	w.snapshot(id, "wednesday")
	p, address := w.serve("volplane")
	defer p.Kill()
	w.announce(address, "backups")
	w.hold(1, "monday")
	idle := w.memory()
	w.hold(1, "wednesday")
	one := w.memory() - idle
	w.hold(streams-1, "wednesday")
	all := w.memory() - idle
	w.T.Logf("%d KiB without streams, %d more with one, %d more with %d", idle>>10, one>>10, all>>10, streams)
	if one > most || all > streams*mostOfEach {
		w.T.Errorf("a stream takes %d bytes, and %d of them take %d", one, streams, all)
	}
}

// memory returns the anonymous memory of the program that serves.
func (w *metadataWorld) memory() (bytes int64) {
	w.T.Helper()
	for _, pid := range plane.ProcessesOf(w.socket) {
		text, err := os.ReadFile(fmt.Sprint("/proc/", pid, "/status"))
		w.Must(err)
		_, after, _ := strings.Cut(string(text), "RssAnon:")
		var kib int64
		_, err = fmt.Sscan(after, &kib)
		w.Must(err)
		bytes += kib << 10
	}
	return bytes
}

// checkRefused requires that the API server has refused no request.
func (w *metadataWorld) checkRefused() {
	w.T.Helper()
	all := w.Audited(w.audit, metadataAccount)
	for _, r := range all {
		if r.ResponseStatus.Code == http.StatusForbidden {
			w.T.Errorf("it may not %s %s: %s", r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
	}
	if len(all) == 0 {
		w.T.Error("it has asked for nothing")
	}
}
