package install

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/skeleton"
)

//go:embed skeleton
var skeletons embed.FS

// Languages in which a Skeleton can be written.
const (
	Shell  = "sh"
	Python = "python"
	Go     = "go"
)

// Languages returns the languages; the first one is the default.
func Languages() []string { return []string{Shell, Python, Go} }

// Skeleton describes a working example of a driver.
type Skeleton struct {
	// Name is the driver's name, such as "example.com/lofs".
	Name string
	// Language is Shell, Python or Go.
	Language string
	// Attach says that the driver attaches.
	Attach bool
}

// goMod is the go.mod of a driver in Go, which needs no other module.
const goMod = "module example.com/skeleton\n\ngo 1.24\n"

// Write writes the driver, and its test, into a directory, which is created; if dir is empty, into one
// with the driver's name. A directory that is not empty is an error, and so is an unknown language. It
// returns the paths of the files, the test last.
func (s Skeleton) Write(dir string) ([]string, error) {
	name, err := decide.ParseName(s.Name)
	if err != nil {
		return nil, fmt.Errorf("driver %q: want VENDOR/DRIVER, such as example.com/lofs: %w", s.Name, err)
	}
	// Names of files, and their templates.
	parts := [][2]string{{"test.sh", "test.sh"}}
	switch s.Language {
	case Shell:
		parts = slices.Insert(parts, 0, [2]string{name.Driver, "driver.sh"})
	case Python:
		parts = slices.Insert(parts, 0, [2]string{name.Driver, "driver.py"})
	case Go:
		parts = slices.Insert(parts, 0, [2]string{name.Driver + ".go", "driver.go.txt"}, [2]string{"go.mod", ""})
	default:
		return nil, fmt.Errorf("write driver: unknown language %q: use %s, %s or %s", s.Language, Shell, Python, Go)
	}
	var files []skeleton.File
	for _, part := range parts {
		text, err := s.text(name, part[1])
		if err != nil {
			return nil, fmt.Errorf("write driver: %w", err)
		}
		files = append(files, skeleton.File{Name: part[0], Text: text})
	}
	return skeleton.Write(cmp.Or(dir, name.Driver), files)
}

// text returns a template with the parts for this skeleton, and its driver's name.
func (s Skeleton) text(name decide.Name, template string) (string, error) {
	text := goMod
	if template != "" {
		data, err := skeletons.ReadFile("skeleton/" + template)
		if err != nil {
			return "", err
		}
		text = string(data)
	}
	kind := "mount"
	if s.Attach {
		kind = "attach"
	}
	words := strings.NewReplacer("example.com/skeleton", name.String(), "example.com~skeleton", name.Dir(),
		"skeleton", name.Driver)
	return words.Replace(skeleton.Choose(text, s.Language, kind)), nil
}
