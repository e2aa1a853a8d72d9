// Package volplane_test holds the rules of the whole repository as tests: who
// may import whom, the form of the code, and that the documents are true.
package volplane_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// goFile is one parsed Go file of any of the modules.
type goFile struct {
	path   string
	set    *token.FileSet
	syntax *ast.File
	// test says that it is a test, or only serves tests.
	test bool
	// generated says that a program wrote it.
	generated bool
}

// at returns the place of a node as people read it.
func (f goFile) at(n ast.Node) string { return f.set.Position(n.Pos()).String() }

// goFiles returns the Go files of the whole tree, whatever their module.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var out []goFile
	for _, path := range treeFiles(t, ".go") {
		if strings.Contains(path, "testdata"+string(filepath.Separator)) {
			continue
		}
		f := goFile{path: path, set: token.NewFileSet()}
		var err error
		if f.syntax, err = parser.ParseFile(f.set, path, nil, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
		f.test = strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join("test", "internal"))
		f.generated = ast.IsGenerated(f.syntax)
		out = append(out, f)
	}
	return out
}

// treeFiles returns the files of the tree whose names end in one of the
// suffixes; build results and git's own are left out.
func treeFiles(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (path == ".git" || path == "bin" || path == "dist"):
			return filepath.SkipDir
		case d.IsDir(), path == ".git": // a file in a work tree beside the repository, with the path of that
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(path, s) && d.Type().IsRegular() {
				out = append(out, path)
				break
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readText(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
