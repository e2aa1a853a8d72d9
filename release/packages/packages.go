package packages

import (
	"regexp"
	"strings"
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

// Version returns a version of the source, as git describes it, as one of a package: a pre-release sorts before its
// release, and commits after a release sort after it. Both dpkg and rpm compare "~" and "+" so.
func Version(described string) string {
	v := strings.TrimPrefix(described, "v")
	if !regexp.MustCompile(`^\d+\.\d`).MatchString(v) {
		v = "0.0.0-git." + v // of a commit without any release before it
	}
	after := ""
	if m := regexp.MustCompile(`-(\d+)-(g[0-9a-f]+)(-dirty)?$`).FindStringSubmatch(v); m != nil {
		v, after = strings.TrimSuffix(v, m[0]), "+"+m[1]+"."+m[2]
		if m[3] != "" {
			after += ".dirty"
		}
	}
	base, pre, found := strings.Cut(v, "-")
	if found {
		base += "~" + pre
	}
	return regexp.MustCompile(`[^A-Za-z0-9.~+]`).ReplaceAllString(base+after, ".")
}
