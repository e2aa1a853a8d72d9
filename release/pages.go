package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"volplane.dev/volplane/release/tree"
)

// docs is where the pages go.
const docs = "share/doc/volplane/"

// pages returns the files that are not for a host's programs: documents, examples, and what Prometheus and Grafana
// load.
func (r *release) pages() (tree.Tree, error) {
	var out tree.Tree
	for _, pattern := range []string{
		"README.md", "SECURITY.md", "SCOPE.md", "docs/*.md", "docs/images/*",
		"examples/*.yaml", "examples/systemd/*", "examples/nomad/*", "examples/flex/*.yaml", "examples/flex/*/*",
		"deploy/prometheus/*.yaml", "deploy/grafana/*",
	} {
		files, err := filepath.Glob(filepath.Join(r.root, pattern))
		if err != nil {
			return nil, err
		}
		for _, at := range files {
			text, err := os.ReadFile(at)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(r.root, at)
			if err != nil {
				return nil, err
			}
			out = append(out, tree.Text(docs+name, string(text)))
		}
	}
	for i, f := range out {
		if path.Ext(f.Path) == ".md" {
			out[i].Body = []byte(linked(out, f))
		}
	}
	return out, nil
}

// linked returns the text of a page with addresses of the source in place of links to files that are not shipped.
func linked(shipped tree.Tree, page tree.File) string {
	link := regexp.MustCompile(`\]\(([^)\s#]+)`)
	return link.ReplaceAllStringFunc(string(page.Body), func(at string) string {
		to := strings.TrimPrefix(at, "](")
		name := path.Join(path.Dir(page.Path), to)
		if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") || has(shipped, name) {
			return at
		}
		return "](" + homepage + "/volplane/" + strings.TrimPrefix(name, docs)
	})
}

// has says whether a file of that name, or one below it, is shipped.
func has(shipped tree.Tree, name string) bool {
	for _, f := range shipped {
		if f.Path == name || strings.HasPrefix(f.Path, name+"/") {
			return true
		}
	}
	return false
}
