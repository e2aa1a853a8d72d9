package drivertest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// Setting is what the scripts of one controller have in common.
type Setting struct {
	// Build makes the controller; option returns an option of the script, empty if it has none.
	Build func(env controller.Env, drivers *csi.Set, option func(name string) string) *controller.Controller
	// Driver is the driver, with the capabilities that a script does not change.
	Driver csitest.Config
	// Kinds make the objects of a script, by their first word.
	Kinds map[string]Kind
	// Given are objects that exist at the start unless a script says "without KIND".
	Given []string
	// Usual are requests of which a script shows only what differs.
	Usual []proto.Message
	// Answers are the driver's answers by method, where it does not answer by what it stores.
	Answers map[string]proto.Message
	// Lazy is a resource whose writes a script does not show while the controller works by itself: how many
	// they are depends on the order in which its workers run.
	Lazy string
}

// Kind makes objects of one kind.
type Kind struct {
	// make makes an object from the words of a script.
	make func(t testing.TB, words []string) runtime.Object
	// states are the words without a value. An object that changes in this way is shown by the word.
	states []string
}

// Object is the Kind of objects that begin as base and are changed by words: states, or "FIELD=VALUE".
func Object[T runtime.Object](base func() T, states map[string]func(T), fields map[string]func(T, string)) Kind {
	change := func(t testing.TB, words []string) runtime.Object {
		t.Helper()
		o := base()
		for _, word := range words {
			name, value, _ := strings.Cut(word, "=")
			if states[name] != nil {
				states[name](o)
			} else if fields[name] != nil {
				fields[name](o, value)
			} else {
				t.Fatalf("an object cannot be %q", word)
			}
		}
		return o
	}
	return Kind{change, slices.Sorted(maps.Keys(states))}
}

// Run runs the scripts of all text files in testdata/steps.
func Run(t *testing.T, s Setting) {
	t.Helper()
	files, err := filepath.Glob("testdata/steps/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runFile(t, s, file) })
	}
}

func runFile(t *testing.T, s Setting, file string) {
	text, err := os.ReadFile(file) //nolint:gosec // part of the source tree
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, paragraph := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		t.Run(title(paragraph), func(t *testing.T) {
			got := ""
			synctest.Test(t, func(t *testing.T) { got = play(t, s, paragraph) })
			if out = append(out, got); os.Getenv("UPDATE_GOLDEN") != "" {
				return
			}
			if diff := cmp.Diff(paragraph, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
	if os.Getenv("UPDATE_GOLDEN") != "" && !t.Failed() {
		//nolint:gosec // part of the source tree
		if err := os.WriteFile(file, []byte(strings.Join(out, "\n\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// title is the name of a paragraph's test.
func title(paragraph string) string {
	line, _, _ := strings.Cut(paragraph, "\n")
	line, _, _ = strings.Cut(strings.TrimPrefix(line, "# "), ":")
	return line
}
