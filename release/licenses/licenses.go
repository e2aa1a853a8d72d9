// Package licenses collects the licences of the parts of Go programs: that of Go's own library and those of each
// module, including parts of a module with their own licence. They are read where the go command has the sources.
package licenses

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Build is how programs are built.
type Build struct {
	// Dir is a directory of their module, Packages are their packages.
	Dir      string
	Packages []string
	// System is the system that they are for.
	System string
}

// fileNames matches the names of files with licences and notices.
const fileNames = `(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)([-._][^.]*)?(\.(txt|md))?$`

// place says where a module is.
type place struct {
	Path, Version, Dir string
	Main               bool
	Replace            *place
}

// source is a package of a program.
type source struct {
	Dir      string
	Standard bool
	Module   *place
}

// collection is what was found so far.
type collection struct {
	// of has the names of the parts to which a text applies.
	of   map[string][]string
	file *regexp.Regexp
	// seen are the directories that were searched, and without the modules whose license text was not found.
	seen, without map[string]bool
}

// Collect returns the licences, each text once, below the names of the parts to which it applies. Every module must
// have one.
func Collect(ctx context.Context, builds []Build) (string, error) {
	c := &collection{
		of: map[string][]string{}, file: regexp.MustCompile(fileNames), seen: map[string]bool{},
		without: map[string]bool{},
	}
	for _, b := range builds {
		if err := c.add(ctx, b); err != nil {
			return "", err
		}
	}
	if len(c.without) > 0 {
		return "", fmt.Errorf("no licence is found of %s", strings.Join(slices.Sorted(maps.Keys(c.without)), ", "))
	}
	return c.text(), nil
}

// add adds the licences of a build.
func (c *collection) add(ctx context.Context, b Build) error {
	out, err := b.run(ctx, "env", "GOROOT", "GOVERSION")
	if err != nil {
		return err
	}
	library := strings.Fields(string(out))
	if len(library) != 2 {
		return fmt.Errorf("go env says %q", out)
	}
	out, err = b.run(ctx, append([]string{"list", "-deps", "-json=Dir,Standard,Module"}, b.Packages...)...)
	if err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var s source
		err := d.Decode(&s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && s.Standard {
			err = c.read("Go's library "+library[1], s.Dir, library[0])
		} else if err == nil {
			err = c.module(s)
		}
		if err != nil {
			return fmt.Errorf("packages of %s: %w", b.Dir, err)
		}
	}
}

// run runs the go command for the system of the build.
func (b Build) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = b.Dir, append(os.Environ(), "GOOS="+b.System, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w", args[0], b.Dir, err)
	}
	return out, nil
}

// module adds the licences of a package of a module. Those of this source are left out.
func (c *collection) module(s source) error {
	m := s.Module
	if m == nil {
		return nil
	}
	if m.Replace != nil {
		m = m.Replace
	}
	if m.Main || m.Version == "" {
		return nil
	}
	return c.read(m.Path+" "+m.Version, s.Dir, m.Dir)
}

// read reads the licences in a package's directory and in those above it, up to the root of its module.
func (c *collection) read(name, dir, root string) error {
	if !c.seen[root] {
		c.without[name] = true
	}
	for ; !c.seen[dir]; dir = filepath.Dir(dir) {
		c.seen[dir] = true
		all, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("licences of %s: %w", name, err)
		}
		for _, e := range all {
			if !e.Type().IsRegular() || !c.file.MatchString(e.Name()) {
				continue
			}
			body, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return fmt.Errorf("licences of %s: %w", name, err)
			}
			below, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
			if err != nil {
				return fmt.Errorf("licences of %s: %w", name, err)
			}
			text := strings.Trim(strings.ReplaceAll(string(body), "\r\n", "\n"), "\n")
			c.of[text] = append(c.of[text], name+", "+filepath.ToSlash(below))
			delete(c.without, name)
		}
		if dir == root {
			break
		}
	}
	return nil
}

// text returns all texts with their names, in the order of the first name.
func (c *collection) text() string {
	var groups []string
	for text, names := range c.of {
		slices.Sort(names)
		groups = append(groups, strings.Join(names, "\n")+"\n"+strings.Repeat("-", 80)+"\n"+text+"\n")
	}
	slices.Sort(groups)
	return "What these programs are built of, each with its licence below.\n\n" +
		strings.Join(groups, "\n"+strings.Repeat("=", 80)+"\n")
}
