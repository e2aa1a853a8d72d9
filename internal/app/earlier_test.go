package app

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// exchanged is what processes write for others, or for themselves after a restart: in the API, on the disks of nodes,
// and in requests to the control plane.
func exchanged() map[string]any {
	return map[string]any{
		"intent": &provision.Intent{}, "journal": &mount.Record{}, "detach": &attach.Record{},
		"invite": &identity.Invite{}, "invited": &identity.Invited{}, "revoke": &identity.Revoke{},
		"invitation": &identity.Invitation{},
	}
}

// TestRecordsOfEarlierVersions: an upgrade may begin with the controllers or with the nodes. This version understands
// each field of the records that earlier commits wrote, with all fields set: testdata/earlier has what their own code
// wrote. In the other direction it writes each of these fields as they did: they ignore fields that they do not know.
func TestRecordsOfEarlierVersions(t *testing.T) {
	files, err := filepath.Glob("testdata/earlier/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("nothing is recorded: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var earlier map[string]json.RawMessage
			if err := json.Unmarshal(text, &earlier); err != nil {
				t.Fatal(err)
			}
			known := exchanged()
			if got, want := slices.Sorted(maps.Keys(earlier)), slices.Sorted(maps.Keys(known)); !slices.Equal(got, want) {
				t.Errorf("recorded are %v, want %v", got, want)
			}
			for name, was := range earlier {
				compareRecord(t, name, was, known[name])
			}
			understand(t, earlier)
		})
	}
}

// compareRecord reads a record into the type that it has now, and writes it again.
func compareRecord(t *testing.T, name string, was []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(was))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Errorf("%s: this version does not understand what an earlier one wrote: %v", name, err)
		return
	}
	now, err := json.Marshal(into)
	if err != nil {
		t.Fatal(err)
	}
	var before, after any
	for text, v := range map[string]*any{string(was): &before, string(now): &after} {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			t.Fatal(err)
		}
	}
	if !within(before, after) {
		t.Errorf("%s: an earlier version does not find in\n%s\nwhat it wrote itself:\n%s", name, now, was)
	}
}

// within says whether a value has all that another one has, and the same.
func within(less, more any) bool {
	has, objects := less.(map[string]any)
	if !objects {
		a, lists := less.([]any)
		b, _ := more.([]any)
		return !lists && reflect.DeepEqual(less, more) ||
			lists && slices.EqualFunc(a, b, within)
	}
	all, _ := more.(map[string]any)
	for key, value := range has {
		if !within(value, all[key]) {
			return false
		}
	}
	return true
}

// understand gives records to those who read them.
func understand(t *testing.T, earlier map[string]json.RawMessage) {
	t.Helper()
	in, err := provision.ParseIntent(string(earlier["intent"]))
	if err != nil || in.Begun.IsZero() || in.From().Key() != "namespace/sourcename" || in.Secrets.Provision == nil {
		t.Errorf("an intent is read as %+v, %v", in, err)
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{volume.AnnDetach: string(earlier["detach"])},
	}}
	if r, err := attach.RecordOf(a); err != nil || r.Handle != "handle" || r.Secret == nil || r.Secret.Name != "name" {
		t.Errorf("what is needed to detach is read as %+v, %v", r, err)
	}
}

// TestWithin: the comparison of records can fail.
func TestWithin(t *testing.T) {
	for more, want := range map[string]bool{
		`{"a":{"b":[{"c":1}]},"d":2}`: true, `{"a":{"b":[{"c":1,"e":0}]}}`: true,
		`{"a":{"b":[{"c":2}]}}`: false, `{"a":{"b":[]}}`: false, `{"d":2}`: false, `{"a":{"b":{"c":1}}}`: false,
	} {
		var less, v any
		for text, into := range map[string]*any{`{"a":{"b":[{"c":1}]}}`: &less, more: &v} {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				t.Fatal(err)
			}
		}
		if got := within(less, v); got != want {
			t.Errorf("%s: %v", more, got)
		}
	}
}
