package apply

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/cli/objects"
)

// TestBatches: objects are sent together if none can need another one, and never twice at the same time.
func TestBatches(t *testing.T) {
	for _, c := range []struct{ docs, want string }{
		{"A/a A/b A/c", "A/a A/b A/c"},
		{"A/a B/a B/b A/c", "A/a|B/a B/b|A/c"},
		{"A/a A/b A/a A/c", "A/a A/b|A/a A/c"},
		{"A/1 A/2 A/3 A/4 A/5 A/6 A/7 A/8 A/9", "A/1 A/2 A/3 A/4 A/5 A/6 A/7 A/8|A/9"},
	} {
		var yaml strings.Builder
		for doc := range strings.FieldsSeq(c.docs) {
			kind, name, _ := strings.Cut(doc, "/")
			yaml.WriteString("---\n{apiVersion: v1, kind: " + kind + ", metadata: {name: '" + name + "'}}\n")
		}
		docs, err := objects.Documents("a test", strings.NewReader(yaml.String()))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, batch := range batches(docs) {
			var names []string
			for _, doc := range batch {
				names = append(names, doc.GetKind()+"/"+doc.GetName())
			}
			got = append(got, strings.Join(names, " "))
		}
		if all := strings.Join(got, "|"); all != c.want {
			t.Errorf("%s is sent as %s, want %s", c.docs, all, c.want)
		}
	}
}
