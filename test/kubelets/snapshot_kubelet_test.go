package kubelets

import (
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/mount"
)

// TestSnapshotsRealKubelet: in a cluster of Kubernetes with a kubelet, a snapshot has what a Pod had written before,
// and a larger claim that is restored from it has a filesystem of its own size. The bundled driver expands it; with a
// kubelet, no other program does.
func TestSnapshotsRealKubelet(t *testing.T) {
	h := newKubeletCluster(t, "provisioner", "attacher", "snapshotter", "snapshot-controller")
	h.ServeSnapshots(h.ctx, t)
	h.createObjects()
	h.run("p1")
	h.write("p1", "before")
	h.Kubectl(h.ctx, t, localSnapshot, "apply", "-f", "-")
	h.Kubectl(h.ctx, t, "", "wait", "volumesnapshot/s", "--namespace=default", "--for=jsonpath={.status.readyToUse}=true",
		"--timeout=1m")
	h.write("p1", "after")
	h.Kubectl(h.ctx, t, largerRestore, "apply", "-f", "-")
	h.runWith("p2", "r")
	restored := h.mounted("p2")
	if got, err := os.ReadFile(filepath.Join(restored, "file")); string(got) != "before" {
		t.Errorf("p2 reads %q: %v", got, err)
	}
	if u, err := mount.Stat(restored); err != nil || u.Total < 100<<20 {
		t.Errorf("the restored filesystem has %d bytes: %v", u.Total, err)
	}
	h.end("p1")
	h.end("p2")
	for _, claim := range []string{"c", "r"} {
		h.must(h.client.CoreV1().PersistentVolumeClaims("default").Delete(h.ctx, claim, metav1.DeleteOptions{}))
	}
	h.Kubectl(h.ctx, t, "", "delete", "volumesnapshot/s", "--namespace=default", "--timeout=1m")
	h.nothingLeft()
}

// write replaces the file in the volume of a Pod.
func (h *kubeletCluster) write(pod, text string) {
	h.t.Helper()
	h.must(os.WriteFile(filepath.Join(h.mounted(pod), "file"), []byte(text), 0o600))
}

const localSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata:
  name: local
  annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}
driver: local.volplane.dev
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: s, namespace: default}
spec: {source: {persistentVolumeClaimName: c}}
`

// largerRestore is a claim twice as large as the source of the snapshot.
const largerRestore = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: r, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: local
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}
  resources: {requests: {storage: 128Mi}}
`
