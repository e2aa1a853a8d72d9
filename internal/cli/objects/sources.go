package objects

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"volplane.dev/volplane/internal/cli/shell"
)

// maxManifest limits the size of one manifest, in bytes.
const maxManifest = 16 << 20

// Documents splits YAML or JSON into its objects; the items of a List count
// one by one.
func Documents(name string, r io.Reader) ([]*unstructured.Unstructured, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("read %s: longer than %d bytes", name, maxManifest)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var out []*unstructured.Unstructured
	for n := 1; ; n++ {
		var content map[string]any
		if err := decoder.Decode(&content); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("read %s, document %d: %w", name, n, err)
		}
		if len(content) == 0 {
			continue
		}
		u := &unstructured.Unstructured{Object: content}
		if u.GetKind() == "" || u.GetAPIVersion() == "" {
			return nil, fmt.Errorf("read %s, document %d: no apiVersion or kind", name, n)
		}
		if !u.IsList() {
			out = append(out, u)
			continue
		}
		if err := u.EachListItem(func(item runtime.Object) error {
			out = append(out, item.(*unstructured.Unstructured))
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read %s, document %d: %w", name, n, err)
		}
	}
}

// Sources are the files with objects that a command line names.
type Sources struct {
	Names     []string
	recursive bool
}

// Register adds the flags that name files.
func (f *Sources) Register(c *cobra.Command) {
	c.Flags().StringArrayVarP(&f.Names, "filename", "f", nil,
		"YAML or JSON file, directory of such files, or - for standard input; may be repeated")
	c.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "with -f DIR: also the files of the directories in it")
}

// Positional refuses files that are given without -f.
func Positional(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("files are named with -f: -f %s", args[0])
}

// FileWithoutFlag refuses a first argument that is a file of objects, where a type is expected.
func FileWithoutFlag(args []string) error {
	if len(args) == 0 || !slices.Contains(extensions(), filepath.Ext(args[0])) {
		return nil
	}
	if _, err := os.Stat(args[0]); err != nil {
		return nil //nolint:nilerr // it is not a file, so it may be a type
	}
	return Positional(nil, args)
}

// extensions are those of the files of a directory that hold objects.
func extensions() []string { return []string{".yaml", ".yml", ".json"} }

// errNoSources is the error of a command that needs a file.
var errNoSources = errors.New("name a file: -f FILE")

// Objects reads the objects of all sources, in their order.
func (f Sources) Objects(s *shell.Shell) ([]*unstructured.Unstructured, error) {
	if len(f.Names) == 0 {
		return nil, errNoSources
	}
	var out []*unstructured.Unstructured
	for _, name := range f.Names {
		docs, err := Read(s, name, f.recursive)
		if err != nil {
			return nil, err
		}
		out = append(out, docs...)
	}
	return out, nil
}

// Read reads all objects of a file, of the files of a directory in the order of their names, recursively if that
// is wanted, or of standard input.
func Read(s *shell.Shell, from string, recursive bool) ([]*unstructured.Unstructured, error) {
	if from == "-" {
		return Documents("standard input", s.In)
	}
	files, err := manifestFiles(from, recursive)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open manifest: %w", err)
		}
		docs, err := Documents(name, file)
		_ = file.Close()
		if err != nil {
			return nil, err
		}
		out = append(out, docs...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s contains no object", from)
	}
	return out, nil
}

// manifestFiles returns a file, or the files of a directory in the order of their names. Links are not followed
// into directories.
func manifestFiles(from string, recursive bool) ([]string, error) {
	info, err := os.Stat(from)
	if err != nil {
		return nil, fmt.Errorf("find manifest: %w", err)
	}
	if !info.IsDir() {
		return []string{from}, nil
	}
	var files []string
	err = filepath.WalkDir(filepath.Clean(from)+string(filepath.Separator), func(
		path string, e fs.DirEntry, err error,
	) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && !recursive && filepath.Clean(path) != filepath.Clean(from):
			return filepath.SkipDir
		case !e.IsDir() && slices.Contains(extensions(), filepath.Ext(path)):
			files = append(files, filepath.Clean(path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	return files, nil
}
