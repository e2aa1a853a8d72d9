package volplane_test

import (
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/volume"
)

// TestEveryReasonIsDecided wants every reason in the code of a decision or of an explanation: one that is nowhere there
// is a word without a meaning.
func TestEveryReasonIsDecided(t *testing.T) {
	given := map[string]bool{}
	for _, f := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(f.path))
		if f.test || coversAny(forTests(), dir) || !coversAny([]string{decidePrefix, explainPrefix}, dir) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				given[s.Sel.Name] = true
			}
			return true
		})
	}
	all := reasons(t)
	if len(all) == 0 {
		t.Fatal("found no reasons: has the form of internal/volume/reason.go changed?")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !given[name] {
			t.Errorf("no decision gives %s (%q): remove it", name, all[name])
		}
	}
}

// TestControllersGiveNoReasons: a controller reports the reason of a decision, so that all users see the
// same words. What all controllers share, their lanes, is not a controller.
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

// readsSentences are the places that read what other programs say, also by the log of client-go; chain adds the name of
// a node for people.
func readsSentences() []string {
	return []string{
		"internal/explain/kubelet/", "internal/explain/scheduling/", "internal/explain/foreign/",
		"internal/explain/chain/render.go", "internal/process/options/log.go",
	}
}

// TestSentencesAreForPeople: what programs exchange is data. No code looks for words in the message of an explanation,
// an event or a condition: who acts next and what the cause is are fields (volume.Because) and annotations.
func TestSentencesAreForPeople(t *testing.T) {
	looked := 0
	for _, f := range goFiles(t) {
		path := filepath.ToSlash(f.path)
		if f.test || f.generated {
			continue
		}
		may := slices.ContainsFunc(readsSentences(), func(prefix string) bool { return strings.HasPrefix(path, prefix) })
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !searches(call) || !slices.ContainsFunc(call.Args, isMessage) {
				return true
			}
			looked++
			if !may {
				t.Errorf("%s: words are looked for in a message: have who writes it write a field of volume.Cause, too", f.at(n))
			}
			return true
		})
	}
	if looked == 0 {
		t.Fatal("no message is searched for words anywhere: has the form of the calls changed?")
	}
}

// searches says whether a call looks for words in a text.
func searches(call *ast.CallExpr) bool {
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch from, _ := of.X.(*ast.Ident); {
	case from != nil && (from.Name == "strings" || from.Name == "bytes"):
		return !slices.Contains([]string{"TrimSpace", "TrimRight", "ToValidUTF8", "Join", "NewReader", "Repeat"}, of.Sel.Name)
	default:
		return strings.HasPrefix(of.Sel.Name, "Match") || strings.HasPrefix(of.Sel.Name, "Find")
	}
}

// isMessage says whether an expression is the message of something, or made of it.
func isMessage(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Message" {
			found = true
		}
		_, call := n.(*ast.CallExpr)
		return !call
	})
	return found
}

// TestControllersAreKnown: each controller that code names by a literal as the next actor is one when the name is read
// again from an event, a condition or a report, and not a driver.
func TestControllersAreKnown(t *testing.T) {
	named := 0
	for _, f := range goFiles(t) {
		if f.test || f.generated {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !isOf(call.Fun, "volume", "Controller") {
				return true
			}
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			named++
			name, err := strconv.Unquote(lit.Value)
			if err != nil || volume.ParseActor(name) != volume.Controller(name) {
				t.Errorf("%s: ParseActor reads %s as a driver: %v", f.at(n), lit.Value, err)
			}
			return true
		})
	}
	if named == 0 {
		t.Fatal("no controller is named anywhere: has the form of the calls changed?")
	}
}

// isOf says whether an expression is a function of a package.
func isOf(e ast.Expr, pkg, name string) bool {
	of, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := of.X.(*ast.Ident)
	return ok && from.Name == pkg && of.Sel.Name == name
}
