package why_test

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

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/state"
	"volplane.dev/volplane/internal/decide/why"
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
func (s *scene) secrets() {
	text, attributes := secretTexts(), secretAttributes()
	notes := map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": hidden, "example.com/note": hidden,
		volume.AnnMountOptions: hidden,
		volume.AnnMigratedFrom: hidden, volume.AnnNext: text,
	}
	managed := []metav1.ManagedFieldsEntry{{Manager: hidden, FieldsV1: metav1.NewFieldsV1(`"` + hidden + `"`)}}
	for _, m := range []metav1.Object{s.claim, s.volume, s.class, s.driver, s.attachment, s.pod, s.n1, s.csi1} {
		m.SetManagedFields(managed)
		m.SetLabels(map[string]string{"l": hidden})
		m.SetAnnotations(maps.Clone(notes))
	}
	s.class.Annotations[volume.AnnDefaultClass] = "true"
	s.claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Resizing", Message: text}}
	s.volume.Spec.CSI.VolumeAttributes, s.class.Parameters, s.attachment.Status.AttachmentMetadata = attributes,
		attributes, attributes
	s.volume.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Name: hidden}
	s.volume.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.com/d", Options: attributes}
	s.volume.Spec.MountOptions, s.class.MountOptions = []string{"ro", "password=" + hidden}, []string{"credentials=" +
		hidden}
	s.volume.Status.Message = text
	s.attachment.Status.AttachError, s.attachment.Status.DetachError = &storagev1.VolumeError{Message: text},
		&storagev1.VolumeError{Message: text}
	s.n1.Status.Images = []corev1.ContainerImage{{Names: []string{hidden}}}
	s.n1.Status.Conditions[0].Message = text
	s.warn("uid-data", volume.ReasonProvisioningFailed, text)
	s.warn("uid-data", volume.ReasonProvisioningFailed, "dump: "+hex.EncodeToString([]byte(hidden)))
	s.secretPod(text, attributes)
	s.all.Full = &volume.Because{Message: text}
	s.all.Begun = []*provision.Intent{{
		Name: "pvc-1", Parameters: attributes, Mutable: attributes,
		Options: []string{hidden},
	}}
	s.snapshot(func(snap *state.Snapshot) { snap.Error = text })
	s.leaving(corev1.NamespaceContentRemaining, text)
}

func (s *scene) secretPod(text string, attributes map[string]string) {
	s.pod.Spec.Containers = []corev1.Container{{
		Name: "c", Image: hidden, Args: []string{hidden},
		Env: []corev1.EnvVar{{Name: "P", Value: hidden}},
	}}
	s.pod.Spec.Volumes = append(s.pod.Spec.Volumes,
		corev1.Volume{Name: "in", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver:           driver,
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
	s.pod.Status.Message = text
	s.pod.Status.Conditions[0].Message = text
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{
			Waiting:    &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: text},
			Terminated: &corev1.ContainerStateTerminated{Message: hidden},
		}, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: hidden}},
	}}
}

// TestNoSecretIsLeft: whatever a cluster quotes of a secret, in whatever spelling, a
// state that is to be shown to strangers does not.
func TestNoSecretIsLeft(t *testing.T) {
	s := newScene()
	s.secrets()
	before, err := json.Marshal(s.all)
	if err != nil || strings.Count(string(before), hidden) < 100 {
		t.Fatalf("the scene has hardly a secret: %v", err)
	}
	data, err := json.MarshalIndent(why.Clean(s.all), "", " ")
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
	if after, err := json.Marshal(s.all); err != nil || string(after) != string(before) {
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
		s := newScene()
		s.class.Parameters = map[string]string{name: "x"}
		if got := why.Clean(s.all).Classes[0].Parameters[name]; (got == "***") != names[name] {
			t.Errorf("%s: x is shown as %q", name, got)
		}
	}
}

// TestCleanKeepsEveryKind: a kind of objects that explanations read is in a state.
func TestCleanKeepsEveryKind(t *testing.T) {
	s := newScene()
	all := reflect.ValueOf(&s.all).Elem()
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
	s.all.MakingHidden, s.all.Full = true, &volume.Because{Message: "full"}
	clean := reflect.ValueOf(why.Clean(s.all))
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

// TestCleanAnswersAlike: what is left is enough for every answer, word for word.
func TestCleanAnswersAlike(t *testing.T) {
	for _, rows := range [][]row{
		claimRows(), attachmentRows(), consumerRows(), growthRows(), volumeRows(), nodeRows(), absentRows(), moveRows(),
		kindRows(),
	} {
		for _, r := range rows {
			s := newScene()
			r.change(s)
			data, err := json.Marshal(why.Clean(s.all))
			var read state.Objects
			if err == nil {
				err = json.Unmarshal(data, &read)
			}
			if err != nil {
				t.Fatal(err)
			}
			var live, filed strings.Builder
			a, _ := ask(s.all, r.ask)
			b, _ := ask(read, r.ask)
			if err := chain.Render(&live, a); err != nil {
				t.Fatal(err)
			}
			if err := chain.Render(&filed, b); err != nil || live.String() != filed.String() {
				t.Errorf("%s: %v\nlive:\n%s\nfrom the file:\n%s", r.name, err, live.String(), filed.String())
			}
		}
	}
}
