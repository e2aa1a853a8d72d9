package csi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestShownFields: each field that the specification marks as secret is hidden, in whichever message it is, and so are
// the values of contexts.
func TestShownFields(t *testing.T) {
	const value = "what nobody may see"
	found := 0
	for _, method := range Methods() {
		request, answer := NewMessages(method)
		for _, m := range []proto.Message{request, answer} {
			fields := m.ProtoReflect().Descriptor().Fields()
			for i := range fields.Len() {
				f := fields.Get(i)
				if !isSecret(f) && !isPrivate(f) {
					continue
				}
				found++
				one := proto.Clone(m)
				one.ProtoReflect().Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(),
					protoreflect.ValueOfString(value))
				want := fmt.Sprintf(`{"%s":{"key":"***"}}`, f.Name())
				if got := string(NewMemory(nil).Shown(one)); got != want {
					t.Errorf("%s: %s, want %s", method, got, want)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d fields are secret or private", found)
	}
}

// TestShown: the form of messages in a trace.
func TestShown(t *testing.T) {
	m := NewMemory(nil)
	for _, test := range []struct {
		name    string
		message proto.Message
		want    string
	}{
		{"nothing", &csipb.ProbeRequest{}, `{}`},
		{"secrets, and where else they stand", &csipb.CreateVolumeRequest{
			Name: "v", Secrets: map[string]string{"password": "hunter22"},
			Parameters: map[string]string{"url": "https://admin:hunter22@storage", "hunter22": "x"},
		}, `{"name":"v","parameters":{"***":"x","url":"https://admin:***@storage"},"secrets":{"password":"***"}}`},
		{"the same in an answer", &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
			VolumeId: "v-hunter22", VolumeContext: map[string]string{"server": "10.0.0.1"},
		}}, `{"volume":{"volume_id":"v-***","volume_context":{"server":"***"}}}`},
		{"what is named as a secret", &csipb.CreateVolumeRequest{
			Parameters: map[string]string{"apiKey": "k", "tier": "fast", "secretName": "cloud"},
		}, `{"parameters":{"apiKey":"***","secretName":"cloud","tier":"fast"}}`},
		{"mount flags", &csipb.NodeStageVolumeRequest{VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{
				FsType: "ext4", MountFlags: []string{"ro", "user=admin", "hunter22=1"},
			}},
		}}, `{"volume_capability":{"mount":{"fs_type":"ext4","mount_flags":["***","user=***","***=***"]}}}`},
		{
			"a token without a name", &csipb.DeleteVolumeRequest{VolumeId: "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJr.c2ln"},
			`{"volume_id":"***"}`,
		},
		{
			"too much", &csipb.CreateVolumeRequest{Parameters: map[string]string{"a": strings.Repeat("x", maxShown)}},
			`"32779 bytes are not shown"`,
		},
	} {
		if got := string(m.Shown(test.message)); got != test.want {
			t.Errorf("%s:\n%s, want\n%s", test.name, got, test.want)
		}
	}
	if got := m.Shown("no message"); got != nil {
		t.Errorf("%s", got)
	}
}

// TestMethods: each method has its messages; streaming methods are not listed.
func TestMethods(t *testing.T) {
	all := Methods()
	for _, m := range all {
		if request, answer := NewMessages(m); request == nil || answer == nil {
			t.Errorf("%s has no messages", m)
		}
	}
	if !slices.Contains(all, csipb.Node_NodeStageVolume_FullMethodName) ||
		slices.Contains(all, csipb.SnapshotMetadata_GetMetadataDelta_FullMethodName) {
		t.Errorf("%q", all)
	}
	for _, m := range []string{
		"", "/", "NodeStageVolume", "/csi.v1.Node", "/csi.v1.Node/No", "/csi.v1.Node/NodeStageVolume/x",
	} {
		if request, _ := NewMessages(m); request != nil {
			t.Errorf("%q has messages", m)
		}
	}
}

// FuzzShown: no secret is in what is shown of a request that carries it, wherever else it occurs, or of an answer that
// repeats it.
func FuzzShown(f *testing.F) {
	f.Add("hunter22", "before ", " after", "key")
	f.Add("a\"b\\c<>&", "", "\n", "hunter22=\u009b")
	f.Add(strings.Repeat("long secret ", 9), "x", "", "eyJ")
	f.Fuzz(func(t *testing.T, secret, before, after, key string) {
		// A secret that is part of the surrounding text cannot be distinguished from it, nor can one of blanks and marks.
		if len(secret) < 4 || strings.Trim(secret, "* \t\n\r\v\f") == "" || strings.Contains(before+after+key, secret) {
			return
		}
		text := before + secret + after
		m := NewMemory(nil)
		request := &csipb.NodeStageVolumeRequest{
			VolumeId: text, Secrets: map[string]string{key: secret},
			VolumeContext:  map[string]string{key: text, tokensKey: `{"":{"token":"` + secret + `"}}`},
			PublishContext: map[string]string{text: "x"},
			VolumeCapability: &csipb.VolumeCapability{AccessType: &csipb.VolumeCapability_Mount{
				Mount: &csipb.VolumeCapability_MountVolume{MountFlags: []string{text, text + "=" + text}},
			}},
		}
		answer := &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
			VolumeId: text, VolumeContext: map[string]string{text: text},
			AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{text: text}}},
		}}
		for _, message := range []proto.Message{request, answer} {
			shown := m.Shown(message)
			if !json.Valid(shown) {
				t.Fatalf("%q is no JSON", shown)
			}
			var value any
			if err := json.Unmarshal(shown, &value); err != nil {
				t.Fatal(err)
			}
			if decoded := fmt.Sprint(value); strings.Contains(decoded, secret) || strings.Contains(string(shown), secret) {
				t.Errorf("secret %q got out: %s", secret, shown)
			}
		}
	})
}

// BenchmarkShown is what a trace costs with each call.
func BenchmarkShown(b *testing.B) {
	m := NewMemory(nil)
	request := &csipb.NodeStageVolumeRequest{
		VolumeId: "vol-0123456789abcdef0", Secrets: map[string]string{"password": "hunter22-and-more"},
		VolumeContext:     map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1", "server": "10.0.0.1"},
		StagingTargetPath: "/var/lib/volplane/node/plugins/kubernetes.io/csi/csi.example.com/0123456789/globalmount",
	}
	for b.Loop() {
		m.Shown(request)
	}
}
