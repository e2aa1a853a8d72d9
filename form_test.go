package volplane_test

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// maxLineLength is in columns.
const maxLineLength = 120

// TestLineLength keeps lines short enough to be read beside others; a tab is one
// column. Raw strings and addresses are as long as what they show, which the linter lll does not
// recognize.
func TestLineLength(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.generated {
			continue
		}
		raw := f.rawLines()
		for i, line := range strings.Split(readText(t, f.path), "\n") {
			n := utf8.RuneCountInString(line)
			exempt := raw[i+1] || strings.HasPrefix(line, "//go:") || strings.Contains(line, "://")
			if n > maxLineLength && !exempt {
				t.Errorf("%s:%d: the line has %d columns, %d are allowed", f.path, i+1, n, maxLineLength)
			}
		}
	}
}

// rawLines returns the lines that have a part of a raw string.
func (f goFile) rawLines() map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(s.Value, "`") {
			for i := f.set.Position(s.Pos()).Line; i <= f.set.Position(s.End()).Line; i++ {
				lines[i] = true
			}
		}
		return true
	})
	return lines
}

// TestPackageDocs wants a package comment of every package, in doc.go where
// there is more than one file.
func TestPackageDocs(t *testing.T) {
	type about struct {
		files int
		doc   string
		name  string
	}
	all := map[string]*about{}
	for _, f := range goFiles(t) {
		dir := filepath.Dir(f.path)
		a := all[dir]
		if a == nil {
			a = &about{}
			all[dir] = a
		}
		if !strings.HasSuffix(f.path, "_test.go") {
			a.files++
			a.name = f.syntax.Name.Name
		}
		if f.syntax.Doc != nil || f.generated {
			a.doc = filepath.Base(f.path)
		}
	}
	for dir, a := range all {
		if a.doc == "" {
			t.Errorf("%s has no package comment", dir)
		} else if a.files > 1 && a.name != "main" && a.doc != "doc.go" {
			t.Errorf("%s has its package comment in %s, want doc.go", dir, a.doc)
		}
	}
}

// TestNames refuses words that say nothing about what a thing is.
func TestNames(t *testing.T) {
	banned := []string{"manager", "handler", "helper", "helpers", "util", "utils", "common"}
	check := func(place, name string) {
		// Server-side apply calls its users field managers.
		for _, word := range words(strings.ReplaceAll(name, "ieldManager", "")) {
			if slices.Contains(banned, word) {
				t.Errorf("%s: the name %s says %q: say what it is", place, name, word)
			}
		}
	}
	for _, f := range goFiles(t) {
		if f.generated {
			continue
		}
		check(f.path, strings.TrimSuffix(filepath.Base(f.path), ".go"))
		check(f.path, f.syntax.Name.Name)
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(f.at(d), d.Name.Name)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						check(f.at(s), s.Name.Name)
					}
					if s, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range s.Names {
							check(f.at(s), name.Name)
						}
					}
				}
			}
		}
	}
}

// words splits a name at underscores and where a capital begins a word.
func words(name string) []string {
	var out []string
	start := 0
	r := []rune(name)
	for i := 1; i <= len(r); i++ {
		if i == len(r) || r[i] == '_' || unicode.IsUpper(r[i]) && !unicode.IsUpper(r[i-1]) {
			out = append(out, strings.ToLower(strings.Trim(string(r[start:i]), "_")))
			start = i
		}
	}
	return out
}

// TestScriptsAreNotSkipped: a skip hides a gap.
func TestScriptsAreNotSkipped(t *testing.T) {
	skip := regexp.MustCompile(`(?m)^(\[.*\] *)?skip\b`)
	for _, path := range treeFiles(t, ".txtar") {
		if skip.MatchString(readText(t, path)) {
			t.Errorf("%s: a script is skipped: make sure of what it needs", path)
		}
	}
}

// TestDecisionsArePure refuses what an import cannot show: the clock and
// goroutines.
func TestDecisionsArePure(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !strings.HasPrefix(filepath.ToSlash(f.path), decidePrefix) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a decision starts a goroutine", f.at(n))
			case *ast.SelectorExpr:
				if name := selector(n); slices.Contains(
					[]string{"time.Now", "time.Since", "time.Until", "time.After", "metav1.Now"}, name) {
					t.Errorf("%s: a decision reads the clock (%s): take the time as an argument", f.at(n), name)
				}
			}
			return true
		})
	}
}

// selector returns "x.Name" of an expression of that form.
func selector(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}
