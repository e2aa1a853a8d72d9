package volplane_test

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Limits of form.
const (
	maxFileLines     = 500
	maxFunctionLines = 80
	maxComplexity    = 12
	maxLineLength    = 120
)

// TestSize keeps files and functions short enough to be read at once. Tables
// of data may be long.
func TestSize(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.generated {
			continue
		}
		functions := 0
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			functions++
			if n := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1; n > maxFunctionLines {
				t.Errorf("%s: function %s has %d lines, %d are allowed", f.at(fn), fn.Name.Name, n, maxFunctionLines)
			}
			if n := complexity(fn); n > maxComplexity {
				t.Errorf("%s: function %s has complexity %d, %d is allowed", f.at(fn), fn.Name.Name, n, maxComplexity)
			}
		}
		if f.lines > maxFileLines && functions > 0 {
			t.Errorf("%s has %d lines, %d are allowed", f.path, f.lines, maxFileLines)
		}
	}
}

// TestLineLength keeps lines short enough to be read beside others; a tab is one
// column. Raw strings and addresses are as long as what they show.
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

// complexity returns the number of ways through a function's branches, plus
// one; functions in it count as parts of it.
func complexity(fn *ast.FuncDecl) int {
	n := 1
	ast.Inspect(fn, func(node ast.Node) bool {
		switch x := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// TestNoHiddenState refuses init functions and package variables: sentinel
// errors, interface assertions and tables of constants are no state.
func TestNoHiddenState(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.generated {
			continue
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					t.Errorf("%s: init function", f.at(d))
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, spec := range d.Specs {
					f.checkVariables(t, d, spec.(*ast.ValueSpec))
				}
			}
		}
	}
}

func (f goFile) checkVariables(t *testing.T, d *ast.GenDecl, spec *ast.ValueSpec) {
	t.Helper()
	embedded := func(g *ast.CommentGroup) bool {
		return g != nil && slices.ContainsFunc(g.List, func(c *ast.Comment) bool {
			return strings.HasPrefix(c.Text, "//go:embed ")
		})
	}
	if embedded(d.Doc) || embedded(spec.Doc) {
		return
	}
	for i, name := range spec.Names {
		var value ast.Expr
		if i < len(spec.Values) {
			value = spec.Values[i]
		}
		if name.Name != "_" && !f.constantLike(name.Name, value) {
			t.Errorf("%s: package variable %s: use a parameter, a field or a function", f.at(name), name.Name)
		}
	}
}

func (f goFile) constantLike(name string, value ast.Expr) bool {
	switch v := value.(type) {
	case *ast.BasicLit:
		// The build sets the version of a program by its variable's name.
		return f.syntax.Name.Name == "main" && name == "version"
	case *ast.CompositeLit:
		// An empty one is there to be filled.
		return len(v.Elts) > 0 && constantTable(v)
	case *ast.CallExpr:
		called := selector(v.Fun)
		sentinel := strings.HasPrefix(name, "Err") || strings.HasPrefix(name, "err")
		return sentinel && (called == "errors.New" || called == "fmt.Errorf") ||
			f.test && strings.HasPrefix(called, "flag.")
	}
	return false
}

// constantTable says whether a literal consists of constants only.
func constantTable(e ast.Expr) bool {
	switch v := e.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr:
		return true
	case *ast.UnaryExpr:
		return constantTable(v.X)
	case *ast.BinaryExpr:
		return constantTable(v.X) && constantTable(v.Y)
	case *ast.KeyValueExpr:
		return constantTable(v.Key) && constantTable(v.Value)
	case *ast.CompositeLit:
		return !slices.ContainsFunc(v.Elts, func(e ast.Expr) bool { return !constantTable(e) })
	}
	return false
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

// TestExportedDocs wants a comment on every exported name; one on a group of
// constants counts for all of them.
func TestExportedDocs(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.generated || strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					t.Errorf("%s: %s has no comment", f.at(d), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					f.checkSpecDoc(t, d, spec)
				}
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	exported := true
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			exported = id.IsExported()
			return false
		}
		_, list := n.(*ast.FieldList)
		return !list
	})
	return exported
}

func (f goFile) checkSpecDoc(t *testing.T, d *ast.GenDecl, spec ast.Spec) {
	t.Helper()
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
			t.Errorf("%s: type %s has no comment", f.at(s), s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				t.Errorf("%s: %s has no comment", f.at(s), name.Name)
			}
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

// TestTestsNeitherSleepNorSkip: a pause hides a race, a skip hides a gap.
func TestTestsNeitherSleepNorSkip(t *testing.T) {
	skips := []string{"Skip", "Skipf", "SkipNow"}
	for _, f := range goFiles(t) {
		if !f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := selector(call.Fun)
			if name == "time.Sleep" {
				t.Errorf("%s: a test sleeps: wait for what it waits for, with a limit", f.at(call))
			}
			if on, method, _ := strings.Cut(name, "."); len(on) <= 2 && slices.Contains(skips, method) {
				t.Errorf("%s: a test is skipped: make sure of what it needs", f.at(call))
			}
			return true
		})
	}
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
