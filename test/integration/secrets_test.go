package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/logged"
	"volplane.dev/volplane/internal/volume"
)

const (
	// hidden is the prefix of everything that must stay secret.
	hidden = "hidden-"

	publishCall   = "ControllerPublishVolume"
	unpublishCall = "ControllerUnpublishVolume"
)

// loud is a driver whose errors quote the whole request, for chosen methods.
type loud struct {
	*csitest.Driver
	mu   sync.Mutex
	sick map[string]bool
}

func newLoud(t *testing.T, h *host) *loud {
	t.Helper()
	config := csitest.Full()
	config.Plugin.AccessibilityConstraints, config.Segments = false, nil
	config.Hooks = map[string]func(any) error{
		"NodePublishVolume": func(r any) error {
			target := r.(*csipb.NodePublishVolumeRequest).GetTargetPath()
			return errors.Join(os.MkdirAll(target, 0o700), unix.Mount("loud", target, "tmpfs", 0, "size=1m"))
		},
		"NodeUnpublishVolume": func(r any) error {
			target := r.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
			return errors.Join(unix.Unmount(target, 0), os.Remove(target))
		},
	}
	d := &loud{Driver: csitest.Start(t, config), sick: map[string]bool{}}
	for _, method := range []string{
		publishCall, "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "NodeUnpublishVolume", "NodeUnstageVolume",
		unpublishCall,
	} {
		d.sick[method] = true
		d.OnCall(method, func(_ int, req any) csitest.Action {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.sick[method] {
				return csitest.Action{Err: status.Errorf(codes.Internal, "%s is sick: %v", method, req)}
			}
			if method != publishCall {
				return csitest.Action{}
			}
			return csitest.Action{After: true, Answer: &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{
				"sessionToken": hidden + "in-publish-context", "device": "/dev/loud",
			}}}
		})
	}
	registry := filepath.Join(h.dir, "plugins_registry")
	h.must(os.MkdirAll(registry, 0o700))
	d.Register(registry)
	return d
}

func (d *loud) heal(method string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sick, method)
}

// wireLoud creates a volume of the driver with secrets in all possible places, and its claim.
func (h *host) wireLoud(d *loud) {
	h.t.Helper()
	_, err := h.client.CoreV1().Secrets("default").Create(h.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		StringData: map[string]string{"user": hidden + "user", "pin": hidden + "pin"},
	}, metav1.CreateOptions{})
	h.must(err)
	made, err := d.CreateVolume(h.t.Context(), &csipb.CreateVolumeRequest{
		Name: "v", VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil),
		},
	})
	h.must(err)
	ref := &corev1.SecretReference{Namespace: "default", Name: "s"}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef:     &corev1.ObjectReference{Namespace: "default", Name: "c"},
		MountOptions: []string{"password=" + hidden + "option"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: d.Name(), VolumeHandle: made.GetVolume().GetVolumeId(),
			VolumeAttributes:           map[string]string{"password": hidden + "attribute", "server": "shown"},
			ControllerPublishSecretRef: ref, NodeStageSecretRef: ref, NodePublishSecretRef: ref, NodeExpandSecretRef: ref,
		}},
	}}
	_, err = h.client.CoreV1().PersistentVolumes().Create(h.t.Context(), v, metav1.CreateOptions{})
	h.must(err)
	_, err = h.client.CoreV1().PersistentVolumeClaims("default").Create(h.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: v.Spec.AccessModes, VolumeName: "v", StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	h.must(err)
}

// TestNoSecretIsTold: Secrets, the data from the driver to the node, and attributes and mount options with
// secret names reach the driver in each of its calls, and its errors quote them. No log, event, condition,
// error of an attachment or output of `volplane` has them.
func TestNoSecretIsTold(t *testing.T) {
	log := &logged.Text{}
	h := newHost(t, func(h *host) {
		h.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	d := newLoud(t, h)
	h.wireLoud(d)
	h.pod("p", "c", "")
	for _, method := range []string{publishCall, "NodeStageVolume", "NodePublishVolume"} {
		h.sickness(method)
		h.tellsNone(log)
		d.heal(method)
	}
	h.mounted("p")
	_, err := h.client.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "c", types.MergePatchType,
		[]byte(`{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`), metav1.PatchOptions{}, "status")
	h.must(err)
	h.sickness("NodeExpandVolume")
	d.heal("NodeExpandVolume")
	h.remove("p")
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume", unpublishCall} {
		h.sickness(method)
		h.tellsNone(log)
		d.heal(method)
	}
	h.clean()
	h.tellsNone(log)
	// All of it could have been disclosed.
	given := map[string]bool{}
	for _, c := range d.Calls() {
		for _, secret := range []string{"user", "pin", "in-publish-context", "attribute", "option"} {
			if text, err := json.Marshal(c.Request); err == nil && strings.Contains(string(text), hidden+secret) {
				given[secret] = true
			}
		}
	}
	if len(given) != 5 {
		t.Errorf("the driver was given %v", slices.Collect(maps.Keys(given)))
	}
}

// sickness waits for the event about a call, which shows the parts that are not secret.
func (h *host) sickness(method string) {
	h.t.Helper()
	h.eventually(func() string {
		all, err := h.client.CoreV1().Events("").List(h.t.Context(), metav1.ListOptions{})
		h.must(err)
		for _, e := range all.Items {
			if strings.Contains(e.Message, method+" is sick: ") && strings.Contains(e.Message, "volume_id:") {
				return ""
			}
		}
		return "nobody is told of " + method
	})
}

// tellsNone looks for secrets in all texts that users read.
func (h *host) tellsNone(log *logged.Text) {
	h.t.Helper()
	told := map[string]string{"the log": log.String()}
	for what, list := range map[string]func() (any, error){
		"events": func() (any, error) { return h.client.CoreV1().Events("").List(h.t.Context(), metav1.ListOptions{}) },
		"pods":   func() (any, error) { return h.client.CoreV1().Pods("").List(h.t.Context(), metav1.ListOptions{}) },
		"claims": func() (any, error) {
			return h.client.CoreV1().PersistentVolumeClaims("").List(h.t.Context(), metav1.ListOptions{})
		},
		"nodes":       func() (any, error) { return h.client.CoreV1().Nodes().List(h.t.Context(), metav1.ListOptions{}) },
		"attachments": h.attachErrors,
	} {
		all, err := list()
		h.must(err)
		text, err := json.Marshal(all)
		h.must(err)
		told[what] = string(text)
	}
	for _, about := range []string{"", "pod/p", "pvc/c", "pv/v", "node/n1"} {
		told["why "+about] = h.why(about)
	}
	for what, text := range told {
		if at := strings.Index(text, hidden); at >= 0 {
			h.t.Errorf("%s: %s", what, text[max(0, at-300):min(len(text), at+100)])
		}
	}
}

// why returns what `volplane why -o json` prints about an object, or about all.
func (h *host) why(about string) string {
	h.t.Helper()
	args := strings.Fields("why " + about + " -o json --kubeconfig " + h.server.AdminKubeconfig())
	var out, errs bytes.Buffer
	cli.Main(h.t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, "test", cli.Programs{})
	return out.String() + errs.String()
}

// attachErrors returns the attachments without the driver's data for the node.
func (h *host) attachErrors() (any, error) {
	all, err := h.client.StorageV1().VolumeAttachments().List(h.t.Context(), metav1.ListOptions{})
	for i := range all.Items {
		all.Items[i].Status.AttachmentMetadata, all.Items[i].ManagedFields = nil, nil
	}
	return all, err
}

// secretClass creates a class that names a Secret of the claim's namespace for every purpose.
func (p *plane) secretClass(name string) {
	p.t.Helper()
	p.createClass(name, func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"tier": "1"}
		for _, purpose := range []string{
			"provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand",
		} {
			c.Parameters["csi.storage.k8s.io/"+purpose+"-secret-name"] = purpose + "-${pvc.annotations['team']}"
			c.Parameters["csi.storage.k8s.io/"+purpose+"-secret-namespace"] = "${pvc.namespace}"
		}
	})
}

// TestSecretsOfTheDriver: the Secret that the class names for the claim is used for creation and deletion,
// with all its values, even if the class is deleted. Only references to it are stored.
func TestSecretsOfTheDriver(t *testing.T) {
	p := newPlane(t)
	p.secretClass("secret")
	red := func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{"team": "red"} }
	p.createClaim("c", "secret", red)
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, `secrets "provisioner-red" not found`)
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("the driver was called %d times without its credentials", n)
	}
	data := map[string]string{"user": "admin-of-all", "password": " s3cr\u00e9t\nof-two-lines ", "encoded": "czNjcmV0"}
	_, err := p.client.CoreV1().Secrets("default").Create(p.ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "provisioner-red"}, StringData: data}, metav1.CreateOptions{})
	p.must(err)
	p.waitForBound("c")
	p.waitForSettled()
	r, v := p.creations()[0], p.getVolume(p.getClaim("c").Spec.VolumeName)
	if !maps.Equal(r.GetSecrets(), data) || !maps.Equal(r.GetParameters(), map[string]string{"tier": "1"}) {
		t.Errorf("called with %v and %v", r.GetSecrets(), r.GetParameters())
	}
	named := func(ref *corev1.SecretReference, purpose string) bool {
		return ref != nil && *ref == corev1.SecretReference{Name: purpose + "-red", Namespace: "default"}
	}
	for what, ok := range map[string]bool{
		"deletion (S4-043)": v.Annotations[volume.AnnDeletionSecretName] == "provisioner-red" &&
			v.Annotations[volume.AnnDeletionSecretNamespace] == "default",
		"attaching (S1-120)":         named(v.Spec.CSI.ControllerPublishSecretRef, "controller-publish"),
		"staging (S1-122)":           named(v.Spec.CSI.NodeStageSecretRef, "node-stage"),
		"publishing (S1-123)":        named(v.Spec.CSI.NodePublishSecretRef, "node-publish"),
		"expansion":                  named(v.Spec.CSI.ControllerExpandSecretRef, "controller-expand"),
		"expansion at the node":      named(v.Spec.CSI.NodeExpandSecretRef, "node-expand"),
		"no value is kept":           p.holds(data) == "",
		"one call made all (S1-024)": p.calls("CreateVolume") == 1,
	} {
		if !ok {
			t.Errorf("%s: %+v %+v, values in %s", what, v.Annotations, v.Spec.CSI, p.holds(data))
		}
	}
	p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "secret", metav1.DeleteOptions{}))
	p.deleteClaim("c")
	p.nothingLeft()
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.DeleteVolumeRequest); ok && !maps.Equal(r.GetSecrets(), data) {
			t.Errorf("deleted with %v", r.GetSecrets())
		}
	}
}

// holds names an object that has one of the values, or returns "".
func (p *plane) holds(values map[string]string) string {
	p.t.Helper()
	claims, err := p.client.CoreV1().PersistentVolumeClaims("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	volumes, err := p.client.CoreV1().PersistentVolumes().List(p.ctx, metav1.ListOptions{})
	p.must(err)
	events, err := p.client.CoreV1().Events("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	intents, err := p.client.CoreV1().ConfigMaps("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	for what, list := range map[string]any{"claims": claims, "volumes": volumes, "events": events, "intents": intents} {
		text, err := json.Marshal(list)
		p.must(err)
		for _, v := range values {
			if strings.Contains(string(text), strings.TrimSpace(v)) {
				return what
			}
		}
	}
	return ""
}
