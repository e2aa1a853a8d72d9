package golden

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test if got is not the content of a file, whose path is relative to the package.
func Equal(t testing.TB, file, got string) {
	t.Helper()
	if updates() {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // part of the source tree
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // part of the source tree
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: write it with UPDATE_GOLDEN=1", err)
	}
	compare(t, file, string(want), got)
}

func updates() bool { return os.Getenv("UPDATE_GOLDEN") != "" }

func compare(t testing.TB, file, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// Change returns the differences between two objects, one line for each JSON path whose value
// differs. With it, a test shows a write completely without showing the whole object.
func Change(t testing.TB, before, after any) string {
	t.Helper()
	oldValues, newValues := leaves(t, before), leaves(t, after)
	paths := maps.Clone(oldValues)
	maps.Copy(paths, newValues)
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		switch old, now := oldValues[path], newValues[path]; {
		case old == now:
		case old == "":
			fmt.Fprintf(&out, "  %s: %s\n", path, now)
		case now == "":
			fmt.Fprintf(&out, "  %s: %s is gone\n", path, old)
		default:
			fmt.Fprintf(&out, "  %s: %s, was %s\n", path, now, old)
		}
	}
	return out.String()
}

// leaves returns the values of an object by JSON path; none for nil.
func leaves(t testing.TB, object any) map[string]string {
	t.Helper()
	text, err := json.Marshal(object)
	var value any
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	walk(all, "", value)
	return all
}

func walk(all map[string]string, path string, value any) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for key, below := range v {
			walk(all, strings.TrimPrefix(path+"."+key, "."), below)
		}
	case []any:
		for n, below := range v {
			walk(all, fmt.Sprint(path, "[", n, "]"), below)
		}
	default:
		text, _ := json.Marshal(v) // it came from JSON
		all[path] = string(text)
	}
}
