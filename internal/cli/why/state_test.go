package why

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/statefile"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/gather/gathertest"
	"volplane.dev/volplane/internal/kube"
)

// TestStateAnswersAsTheCluster: every object of a town is explained from a file as from
// the API, in both formats of the file.
func TestStateAnswersAsTheCluster(t *testing.T) {
	r := shell.Facts(gathertest.Town())
	spaces, err := gathertest.Town().CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err = errors.Join(err, r.All(t.Context(), metav1.NamespaceAll)); err != nil {
		t.Fatal(err)
	}
	r.Namespaces = kube.Pointers(spaces.Items)
	for _, output := range []string{"json", "yaml"} {
		data, err := encodeState(stateFile{stateKind, "v1", "", statefile.Clean(r.Objects)}, output)
		if err != nil {
			t.Fatal(err)
		}
		st, err := readState((&shell.Shell{Streams: shell.Streams{In: bytes.NewReader(data)}}), "-")
		if err != nil || !st.Now.Equal(r.Now) || st.Version != "v1" {
			t.Fatalf("written at %v, read as of %v, version %q: %v", r.Now, st.Now, st.Version, err)
		}
		for _, k := range gather.Kinds() {
			sameAnswers(t, k, st.Objects)
		}
	}
}

// sameAnswers compares the answers about all objects of a kind from the town and from a
// file.
func sameAnswers(t *testing.T, k gather.Kind, filed state.Objects) {
	t.Helper()
	for _, name := range []string{
		"late", "data", "pv-data", "pod-data", "c1", "a-c1", "n1", "fast", "d.example.com",
		"ns",
	} {
		if k.Name == "volumesnapshot" || k.Name == "volumegroupsnapshot" {
			continue
		}
		live, exists, err := k.Explain(t.Context(), shell.Facts(gathertest.Town()), "ns", name)
		if err != nil {
			t.Fatal(err)
		}
		told, found := k.Tell(why.Of(filed), "ns", name)
		if found != exists || render(t, told) != render(t, live) {
			t.Errorf("%s/%s: there %v\n%s\nfrom the file %v\n%s",
				k.Name, name, exists, render(t, live), found, render(t, told))
		}
	}
}

func render(t *testing.T, c chain.Chain) string {
	t.Helper()
	if len(c.Links) == 0 {
		return ""
	}
	var b strings.Builder
	if err := chain.Render(&b, c, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestStateFileIsPrivate: only its owner may read a state file, and an existing one is
// replaced only with --force.
func TestStateFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for _, c := range []struct {
		text, left string
		force      bool
	}{{"a", "a", false}, {"b", "a", false}, {"c", "c", true}} {
		err := writeState(path, []byte(c.text), c.force)
		if (err == nil) != (c.text == c.left) {
			t.Errorf("%s: %v", c.text, err)
		}
		data, err := os.ReadFile(path)
		info, bad := os.Stat(path)
		if err != nil || bad != nil || string(data) != c.left || info.Mode().Perm() != 0o600 {
			t.Errorf("after %s the file has %q, mode %v; %v, %v", c.text, data, info.Mode(), err, bad)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

// TestInvalidStates: other files are refused, and null values in a state file are
// ignored.
func TestInvalidStates(t *testing.T) {
	for text, want := range map[string]string{
		"": "its kind is", "{": "unexpected end", "a: [": "yaml", "kind: Pod": `its kind is "Pod"`,
		`{"kind":"VolplaneState","Claims":[null],"Nodes":[null],"Pods":[null],"Warnings":[null],"Begun":[null],"Leases":[null]}`: "",
	} {
		st, err := readState((&shell.Shell{Streams: shell.Streams{In: strings.NewReader(text)}}), "-")
		switch {
		case want == "" && err == nil:
			survey.Causes(why.Of(st.Objects))
		case want == "" || err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestStateOfOneNamespace: a question is about the named namespace, or else about the
// only one of the file.
func TestStateOfOneNamespace(t *testing.T) {
	for _, c := range []struct{ has, asked, want string }{
		{"", "", metav1.NamespaceDefault}, {"", "a", "a"}, {"a", "", "a"}, {"a", "a", "a"}, {"a", "b", ""},
	} {
		got, err := (&stateFile{Namespace: c.has}).namespaceFor(c.asked)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("of %q, asked for %q: %q, %v", c.has, c.asked, got, err)
		}
	}
}
