package volplane_test

import (
	"go/ast"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryReasonIsDecided wants every reason in a golden file: a reason that
// no tested decision gives is a word without a meaning.
func TestEveryReasonIsDecided(t *testing.T) {
	var golden strings.Builder
	for _, path := range treeFiles(t, "") {
		slashed := filepath.ToSlash(path)
		if strings.HasPrefix(slashed, "internal/") && strings.Contains(slashed, "/testdata/") {
			golden.WriteString(readText(t, path))
			golden.WriteByte('\n')
		}
	}
	seen := map[string]bool{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(golden.String(), -1) {
		seen[word] = true
	}
	all := reasons(t)
	if len(all) == 0 {
		t.Fatal("found no reasons: has the form of internal/volume/reason.go changed?")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if word := all[name]; !seen[word] {
			t.Errorf("%s (%q) is in no golden file below internal/: test the decision that gives it, or remove it", name, word)
		}
	}
}

// TestControllersGiveNoReasons: a controller tells what a decision has given, so that all who ask hear the
// same words. What all controllers share, their lanes, is no controller.
func TestControllersGiveNoReasons(t *testing.T) {
	looked := 0
	for _, f := range goFiles(t) {
		if f.test || !strings.HasPrefix(filepath.ToSlash(filepath.Dir(f.path)), "internal/controller/") {
			continue
		}
		looked++
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			made, ok := n.(*ast.CompositeLit)
			if !ok || len(made.Elts) == 0 {
				return true
			}
			if kind, ok := made.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Because" {
				t.Errorf("%s: a controller gives a reason of its own: have a decision in internal/decide give it", f.at(n))
			}
			return true
		})
	}
	if looked == 0 {
		t.Fatal("found no controllers")
	}
}

// reasons returns the constants of type volume.Reason by name.
func reasons(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, f := range goFiles(t) {
		if f.test || filepath.ToSlash(filepath.Dir(f.path)) != "internal/volume" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
				return true
			}
			for i, name := range spec.Names {
				word, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out[name.Name] = word
			}
			return true
		})
	}
	return out
}
