package skeleton

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is a file that is written. One that begins with "#!" can be executed.
type File struct{ Name, Text string }

// Write writes files into a directory, which is created. A directory that is not empty is an error. It returns the
// paths of the files.
func Write(dir string, files []File) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- part of a user's source tree
		return nil, fmt.Errorf("write driver: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fs.ErrExist
	}
	if err != nil {
		return nil, fmt.Errorf("write driver: directory %s is not empty: %w", dir, err)
	}
	var paths []string
	for _, f := range files {
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(f.Text, "#!") {
			mode = 0o755
		}
		path := filepath.Join(dir, f.Name)
		paths = append(paths, path)
		err = errors.Join(err, os.WriteFile(path, []byte(f.Text), mode))
	}
	if err != nil {
		return nil, fmt.Errorf("write driver: %w", err)
	}
	return paths, nil
}

// Choose returns a template with the parts of the chosen words and without all others. A part begins with a line
// "[WORD]" and ends with a line "[end]", both in a comment.
func Choose(text string, chosen ...string) string {
	var out strings.Builder
	skip := false
	for line := range strings.Lines(text) {
		word := strings.TrimLeft(strings.TrimSpace(line), "#/")
		if strings.HasPrefix(word, "[") && strings.HasSuffix(word, "]") && word != strings.TrimSpace(line) {
			word = strings.Trim(word, "[]")
			skip = word != "end" && !slices.Contains(chosen, word)
			continue
		}
		if !skip {
			out.WriteString(line)
		}
	}
	return out.String()
}
