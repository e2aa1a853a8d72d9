package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"volplane.dev/volplane/release/tree"
)

// chart makes the archive of the Helm chart, which has the version of the release and refers to its images.
func (r *release) chart(context.Context) error {
	from := os.DirFS(filepath.Join(r.root, "charts", volplane))
	var files tree.Tree
	err := fs.WalkDir(from, ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(from, at)
		if err != nil {
			return err
		}
		if at == "Chart.yaml" {
			if body, err = r.versioned(body); err != nil {
				return err
			}
		}
		files = append(files, tree.File{Path: at, Mode: 0o644, Body: body})
		return nil
	})
	if err != nil {
		return err
	}
	data, err := files.Below(volplane).TarGz(r.when)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("%s-%s.tgz", volplane, chartVersion(r.version)), data)
}

// versioned returns the chart's description with the versions of the release.
func (r *release) versioned(text []byte) ([]byte, error) {
	for line, value := range map[string]string{"version": chartVersion(r.version), "appVersion": `"` + r.tag() + `"`} {
		at := regexp.MustCompile(`(?m)^` + line + `: .*$`)
		if len(at.FindAll(text, -1)) != 1 {
			return nil, fmt.Errorf("not one line of Chart.yaml begins with %s", line)
		}
		text = at.ReplaceAllLiteral(text, []byte(line+": "+value))
	}
	return text, nil
}

// chartVersion returns a version of the source, from git describe, as that of a chart, which must be semantic for helm.
func chartVersion(described string) string {
	v := strings.TrimPrefix(described, "v")
	if !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(v) {
		v = "0.0.0-git." + v // of a commit without any release before it
	}
	return regexp.MustCompile(`[^A-Za-z0-9.+-]`).ReplaceAllString(v, "-")
}
