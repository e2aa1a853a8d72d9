package packages

import (
	"time"

	"volplane.dev/volplane/release/tree"
)

// Package is what a package says, and has.
type Package struct {
	// Name and Version are those of the package, in words of both systems.
	Name, Version string
	// Arch is the architecture, as GOARCH names it.
	Arch string
	// Summary is one line, Description some more of at most 78 columns.
	Summary     string
	Description []string
	// Maintainer and Homepage give its origin.
	Maintainer, Homepage, License string
	// Requires and Recommends are names of packages that both systems have.
	Requires, Recommends []string
	// Files are the files, with usr and etc at the top.
	Files tree.Tree
	// When is the time of all files.
	When time.Time
}

// directories are created by a package, and removed with it when they are empty.
func (p Package) directories() tree.Tree {
	var out tree.Tree
	for _, f := range p.Files {
		if f.Mode.IsDir() {
			out = append(out, f)
		}
	}
	return out
}
