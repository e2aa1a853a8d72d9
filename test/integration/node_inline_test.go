package integration

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

const inlineName = "inline.example.com"

// newInlineHost runs a node agent with the rights of a node, and a driver of inline volumes, which mounts an
// empty filesystem at each target.
func newInlineHost(t *testing.T, spec storagev1.CSIDriverSpec) (*host, *csitest.Driver) {
	t.Helper()
	h := prepareHost(t)
	spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	_, err := h.client.StorageV1().CSIDrivers().Create(t.Context(),
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: inlineName}, Spec: spec}, metav1.CreateOptions{})
	h.must(err)
	d := csitest.Start(t, csitest.Config{Name: inlineName, NodeID: "n1"})
	d.OnCall("NodePublishVolume", func(_ int, req any) csitest.Action {
		target := req.(*csipb.NodePublishVolumeRequest).GetTargetPath()
		_, mounted, err := mount.At(target)
		if err == nil && !mounted {
			err = errors.Join(os.MkdirAll(target, 0o750), unix.Mount("inline", target, "tmpfs", 0, ""))
		}
		return csitest.Action{Err: err, Answer: &csipb.NodePublishVolumeResponse{}}
	})
	d.OnCall("NodeUnpublishVolume", func(_ int, req any) csitest.Action {
		target := req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
		return csitest.Action{
			Err: errors.Join(mount.Unmount(target), mount.Remove(target)), Answer: &csipb.NodeUnpublishVolumeResponse{},
		}
	})
	registry := filepath.Join(h.dir, "plugins_registry")
	h.must(os.MkdirAll(registry, 0o700))
	d.Register(registry)
	h.run()
	return h, d
}

// published returns the requests to publish.
func published(d *csitest.Driver) (all []*csipb.NodePublishVolumeRequest) {
	for _, c := range d.Calls() {
		if r, ok := c.Request.(*csipb.NodePublishVolumeRequest); ok {
			all = append(all, r)
		}
	}
	return all
}

// inlinePod creates a Pod with an inline volume, and with a service account unless that is empty.
func (h *host) inlinePod(name, secret, account string) {
	h.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeName, p.Spec.ServiceAccountName = "n1", account
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	source := &corev1.CSIVolumeSource{Driver: inlineName}
	if secret != "" {
		source.NodePublishSecretRef = &corev1.LocalObjectReference{Name: secret}
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{CSI: source}}}
	_, err := h.client.CoreV1().Pods("default").Create(h.t.Context(), p, metav1.CreateOptions{})
	h.must(err)
}

// TestNodeInlineVolumes: the node may read the Pod's Secret. An agent that has lost its journal adopts and
// unpublishes the volume.
func TestNodeInlineVolumes(t *testing.T) {
	h, d := newInlineHost(t, storagev1.CSIDriverSpec{})
	_, err := h.client.CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "hidden"}},
		metav1.CreateOptions{})
	h.must(err)
	h.inlinePod("p", "s", "")
	path := h.mounted("p")
	if got := published(d)[0].GetSecrets()["key"]; got != "hidden" {
		t.Errorf("the secret is %q", got)
	}
	h.must(os.WriteFile(filepath.Join(path, "f"), []byte("kept"), 0o600))
	h.stopAgent()
	h.must(os.RemoveAll(filepath.Join(h.dir, "journal")))
	h.startAgent()
	h.eventually(func() string {
		if files, _ := filepath.Glob(filepath.Join(h.dir, "journal", "*.json")); len(files) != 1 {
			return "the record is not there again"
		}
		return ""
	})
	if got, err := os.ReadFile(filepath.Join(path, "f")); err != nil || string(got) != "kept" {
		t.Errorf("read %q, %v", got, err)
	}
	h.remove("p")
	h.gone("p")
	h.clean()
}

// TestNodeTokens: a driver that wants a token of the Pod's service account gets one for this Pod and for
// its audience, which the node itself requests. Without a token the volume is not published, and the Pod's
// condition says why.
func TestNodeTokens(t *testing.T) {
	h, d := newInlineHost(t, storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}}})
	h.inlinePod("stranger", "", "unknown")
	h.eventually(func() string {
		events, err := h.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		h.must(err)
		for _, e := range events.Items {
			if e.Reason == string(volume.ReasonFailedMount) &&
				strings.Contains(e.Message, `token of service account default/unknown for audience "vault"`) {
				return ""
			}
		}
		return "the Pod is not told"
	})
	if len(published(d)) > 0 {
		t.Error("the driver was called without a token")
	}
	h.remove("stranger")
	h.gone("stranger")

	h.inlinePod("p", "", "")
	h.mounted("p")
	var tokens map[string]authenticationv1.TokenRequestStatus
	h.must(json.Unmarshal([]byte(published(d)[0].GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens))
	review, err := h.client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: tokens["vault"].Token, Audiences: []string{"vault"}},
	}, metav1.CreateOptions{})
	h.must(err)
	user := review.Status.User
	if !review.Status.Authenticated || user.Username != "system:serviceaccount:default:default" ||
		!slices.Equal(user.Extra["authentication.kubernetes.io/pod-name"], []string{"p"}) {
		t.Errorf("the token says %+v", review.Status)
	}
	h.remove("p")
	h.gone("p")
	h.clean()
}
