package install

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
)

//go:embed skeleton
var skeletons embed.FS

// Languages in which a Skeleton can be written.
const (
	Shell  = "sh"
	Python = "python"
	Go     = "go"
)

// Skeleton describes a working example of a driver.
type Skeleton struct {
	Name decide.Name
	// Language is Shell, Python or Go.
	Language string
	// Attach says that the driver attaches.
	Attach bool
}

// goMod is the go.mod of a driver in Go, which needs no other module.
const goMod = "module example.com/skeleton\n\ngo 1.24\n"

// Write writes the driver, and its test, into a directory, which is created. A directory that is not
// empty is an error, and so is an unknown language. It returns the paths of the files, the test
// last.
func (s Skeleton) Write(dir string) ([]string, error) {
	var parts []file
	switch s.Language {
	case Shell:
		parts = []file{{s.Name.Driver, "driver.sh"}}
	case Python:
		parts = []file{{s.Name.Driver, "driver.py"}}
	case Go:
		parts = []file{{s.Name.Driver + ".go", "driver.go.txt"}, {"go.mod", ""}}
	default:
		return nil, fmt.Errorf("write driver: unknown language %q: use %s, %s or %s", s.Language, Shell, Python, Go)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- part of somebody's source tree
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
	for _, f := range append(parts, file{"test.sh", "test.sh"}) {
		text, textErr := s.text(f)
		paths = append(paths, filepath.Join(dir, f.name))
		// #nosec G306 -- it is there to be executed
		err = errors.Join(err, textErr, os.WriteFile(paths[len(paths)-1], []byte(text), 0o755))
	}
	if err != nil {
		return nil, fmt.Errorf("write driver: %w", err)
	}
	return paths, nil
}

// file is a file of a skeleton, and its template.
type file struct{ name, template string }

// text returns the text of a file with the parts for this skeleton, and its driver's name.
func (s Skeleton) text(f file) (string, error) {
	text := goMod
	if f.template != "" {
		data, err := skeletons.ReadFile("skeleton/" + f.template)
		if err != nil {
			return "", err
		}
		text = string(data)
	}
	words := strings.NewReplacer("example.com/skeleton", s.Name.String(), "example.com~skeleton", s.Name.Dir(),
		"skeleton", s.Name.Driver)
	return words.Replace(s.choose(text)), nil
}

// choose returns a template without its parts for other skeletons. A part begins with a line "[WORD]"
// and ends with a line "[end]", both in a comment.
func (s Skeleton) choose(text string) string {
	chosen := []string{s.Language, "mount"}
	if s.Attach {
		chosen[1] = "attach"
	}
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
