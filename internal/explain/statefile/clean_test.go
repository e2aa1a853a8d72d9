package statefile_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/statefile"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// hidden is the secret that must not be found; every spelling of it has this part.
const hidden = "hunter2-Zx9QpLm4"

// spellings are names of attributes that promise a secret.
func spellings() []string {
	return []string{
		"password", "adminPassword", "ADMIN_PASSWORD", "admin.passwd", "pwd", "passphrase", "secret", "clientSecret",
		"sasToken",
		"x-api-key", "accessKeyID", "privateKey", "tls.cert", "credentials", "authorization", "session-cookie", "signature",
		"secretNameValue",
	}
}

func secretAttributes() map[string]string {
	out := map[string]string{
		"pool": "fast", "url": "https://admin:" + hidden + "@nas.example.com/v1",
		"pem": "-----BEGIN RSA KEY-----\n" + hidden,
	}
	for _, name := range spellings() {
		out[name] = hidden
	}
	return out
}

// secretTexts quote the secret as programs do.
func secretTexts() string {
	quoted, err := json.Marshal(map[string]string{"password": hidden})
	if err != nil {
		return err.Error()
	}
	return strings.Join([]string{
		"mount failed: " + hidden, "password=" + hidden, string(quoted), `{\"token\":\"` + hidden + `\"}`,
		"cifs://u:" + hidden + "@h/s",
		"Authorization: Bearer " + hidden, base64.StdEncoding.EncodeToString([]byte(hidden)),
		url.QueryEscape(hidden), strings.ToUpper("apikey=") + hidden,
	}, "; ")
}

// secrets has each text of the scene quote the secret, and each place that a user fills
// have it.
func secrets(s *scene) {
	text, attributes := secretTexts(), secretAttributes()
	notes := map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": hidden, "example.com/note": hidden,
		volume.AnnMountOptions: hidden,
		volume.AnnMigratedFrom: hidden, volume.AnnNext: text,
	}
	managed := []metav1.ManagedFieldsEntry{{Manager: hidden, FieldsV1: metav1.NewFieldsV1(`"` + hidden + `"`)}}
	for _, m := range []metav1.Object{s.Claim, s.Volume, s.Class, s.Driver, s.Attachment, s.Pod, s.N1, s.CSI1} {
		m.SetManagedFields(managed)
		m.SetLabels(map[string]string{"l": hidden})
		m.SetAnnotations(maps.Clone(notes))
	}
	s.Class.Annotations[volume.AnnDefaultClass] = "true"
	s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Resizing", Message: text}}
	s.CSI1.Status.StorageHealth = []storagev1.StorageHealth{{
		Name: whytest.Driver, HealthConditions: []storagev1.StorageHealthCondition{{Reason: text, Message: text}},
	}}
	s.Claim.Status.HealthStatus = &corev1.VolumeHealthStatus{
		HealthConditions: []corev1.VolumeHealthCondition{{Reason: text, Message: text}},
	}
	s.Volume.Spec.CSI.VolumeAttributes, s.Class.Parameters, s.Attachment.Status.AttachmentMetadata = attributes,
		attributes, attributes
	s.Volume.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Name: hidden}
	s.Volume.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.com/d", Options: attributes}
	s.Volume.Spec.MountOptions, s.Class.MountOptions = []string{"ro", "password=" + hidden}, []string{"credentials=" +
		hidden}
	s.Volume.Status.Message = text
	s.Attachment.Status.AttachError, s.Attachment.Status.DetachError = &storagev1.VolumeError{Message: text},
		&storagev1.VolumeError{Message: text}
	s.N1.Status.Images = []corev1.ContainerImage{{Names: []string{hidden}}}
	s.N1.Status.Conditions[0].Message = text
	s.Warn("uid-data", volume.ReasonProvisioningFailed, text)
	s.Warn("uid-data", volume.ReasonProvisioningFailed, "dump: "+hex.EncodeToString([]byte(hidden)))
	secretPod(s, text, attributes)
	s.All.Full = &volume.Because{Message: text}
	s.All.Begun = []*provision.Intent{{
		Name: "pvc-1", Parameters: attributes, Mutable: attributes,
		Options: []string{hidden},
	}}
	s.Snapshot(func(snap *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent) {
		snap.Status.Error = &snapshotv1.VolumeSnapshotError{Message: &text}
		c.Status.Error, c.Status.SnapshotHandle, c.Spec.Source.VolumeHandle = snap.Status.Error, &text, &text
		c.Annotations = map[string]string{volume.AnnSnapshotParameters: hidden}
	})
	s.All.SnapshotClasses[0].Parameters = attributes
	s.Leaving(corev1.NamespaceContentRemaining, text)
}

func secretPod(s *scene, text string, attributes map[string]string) {
	s.Pod.Spec.Containers = []corev1.Container{{
		Name: "c", Image: hidden, Args: []string{hidden},
		Env: []corev1.EnvVar{{Name: "P", Value: hidden}},
	}}
	s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes,
		corev1.Volume{Name: "in", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver:           whytest.Driver,
			VolumeAttributes: attributes,
		}}},
		corev1.Volume{
			Name: "flex", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Options: attributes}},
		},
		corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: hidden}}},
		corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": hidden}},
			},
		}}})
	s.Pod.Status.Message = text
	s.Pod.Status.VolumeHealth = []corev1.PodVolumeHealth{{
		Name: "in", HealthConditions: []corev1.VolumeHealthCondition{{Reason: text, Message: text}},
	}}
	s.Pod.Status.Conditions[0].Message = text
	s.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{
			Waiting:    &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: text},
			Terminated: &corev1.ContainerStateTerminated{Message: hidden},
		}, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: hidden}},
	}}
}

// TestNoSecretIsLeft: whatever a cluster quotes of a secret, in whatever spelling, a
// state that is to be shown to strangers does not.
func TestNoSecretIsLeft(t *testing.T) {
	s := whytest.New()
	secrets(s)
	before, err := json.Marshal(s.All)
	if err != nil || strings.Count(string(before), hidden) < 100 {
		t.Fatalf("the scene has hardly a secret: %v", err)
	}
	data, err := json.MarshalIndent(statefile.Clean(s.All), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	clean := string(data)
	for _, spelling := range []string{
		hidden, "hunter2", "Zx9QpLm4", base64.StdEncoding.EncodeToString([]byte(hidden))[:12],
		hex.EncodeToString([]byte(hidden))[:16],
	} {
		for line := range strings.Lines(clean) {
			if strings.Contains(line, spelling) {
				t.Errorf("%s is left: %s", spelling, line)
			}
		}
	}
	if !strings.Contains(clean, `"pool": "fast"`) || !strings.Contains(clean, "mount failed: ***") {
		t.Error("what is no secret is left out as well:\n" + clean)
	}
	if after, err := json.Marshal(s.All); err != nil || string(after) != string(before) {
		t.Errorf("the objects themselves were changed: %v", err)
	}
}

// TestEverySecretNameIsKnown: each name alone has its value hidden, and those of
// references to Secrets do not.
func TestEverySecretNameIsKnown(t *testing.T) {
	names := map[string]bool{
		"csi.storage.k8s.io/provisioner-secret-name": false, "csi.storage.k8s.io/node-stage-secret-namespace": false,
		"secretName": false,
		"pool":       false, "fsType": false, "user": false,
	}
	for _, name := range spellings() {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s := whytest.New()
		s.Class.Parameters = map[string]string{name: "x"}
		if got := statefile.Clean(s.All).Classes[0].Parameters[name]; (got == "***") != names[name] {
			t.Errorf("%s: x is shown as %q", name, got)
		}
	}
}

// TestCleanKeepsEveryKind: a kind of objects that explanations read is in a state.
func TestCleanKeepsEveryKind(t *testing.T) {
	s := whytest.New()
	all := reflect.ValueOf(&s.All).Elem()
	fill := func(v reflect.Value) {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice && f.Len() == 0 {
				item := reflect.Zero(f.Type().Elem())
				if f.Type().Elem().Kind() == reflect.Pointer {
					item = reflect.New(f.Type().Elem().Elem())
				}
				f.Set(reflect.Append(f, item))
			}
		}
	}
	fill(all)
	fill(all.FieldByName("Lists"))
	s.All.MakingHidden, s.All.Full = true, &volume.Because{Message: "full"}
	clean := reflect.ValueOf(statefile.Clean(s.All))
	check := func(was, is reflect.Value) {
		for i := range was.NumField() {
			name := was.Type().Field(i).Name
			if w, n := was.Field(i), is.Field(i); w.Kind() == reflect.Slice && w.Len() != n.Len() || !w.IsZero() && n.IsZero() {
				t.Errorf("%s is not in the state", name)
			}
		}
	}
	check(all, clean)
	check(all.FieldByName("Lists"), clean.FieldByName("Lists"))
}

type scene = whytest.Scene
