package main

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPages: every link of a shipped page leads to a shipped file or to an address, and the examples that the pages
// name are shipped.
func TestPages(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{root: root}
	shipped, err := r.pages()
	if err != nil {
		t.Fatal(err)
	}
	complete, err := shipped.Complete()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"examples/flex/lofs/lofs", "docs/images/page-claim-dark.png", "SECURITY.md"} {
		if _, ok := complete.Find("share/doc/volplane/" + want); !ok {
			t.Errorf("%s is not shipped", want)
		}
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, page := range complete {
		if path.Ext(page.Path) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(page.Body), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if _, ok := complete.Find(path.Join(path.Dir(page.Path), target)); !ok && !isAddress(target) {
				t.Errorf("%s: nothing is shipped at %s", page.Path, m[1])
			}
		}
	}
}

// isAddress says whether a link leads outside of the release, or to its own page.
func isAddress(target string) bool {
	return strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") || target == ""
}
