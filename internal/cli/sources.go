package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// sources are the files with objects that a command line names.
type sources struct {
	names     []string
	recursive bool
}

func (f *sources) register(c *cobra.Command) {
	c.Flags().StringArrayVarP(&f.names, "filename", "f", nil,
		"YAML or JSON file, directory of such files, or - for standard input; may be repeated")
	c.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "with -f DIR: also the files of the directories in it")
}

// positional refuses files that are given without -f.
func positional(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("files are named with -f: -f %s", args[0])
}

// fileWithoutFlag refuses a first argument that is a file of objects, where a type is expected.
func fileWithoutFlag(args []string) error {
	if len(args) == 0 || !slices.Contains(extensions(), filepath.Ext(args[0])) {
		return nil
	}
	if _, err := os.Stat(args[0]); err != nil {
		return nil //nolint:nilerr // it is not a file, so it may be a type
	}
	return positional(nil, args)
}

// extensions are those of the files of a directory that hold objects.
func extensions() []string { return []string{".yaml", ".yml", ".json"} }

// errNoSources is the error of a command that needs a file.
var errNoSources = errors.New("name a file: -f FILE")

// objects reads the objects of all sources, in their order.
func (f sources) objects(s *shell) ([]*unstructured.Unstructured, error) {
	if len(f.names) == 0 {
		return nil, errNoSources
	}
	var out []*unstructured.Unstructured
	for _, name := range f.names {
		docs, err := s.manifests(name, f.recursive)
		if err != nil {
			return nil, err
		}
		out = append(out, docs...)
	}
	return out, nil
}

// manifests reads all objects of a file, of the files of a directory in the order of their names, recursively if that
// is wanted, or of standard input.
func (s *shell) manifests(from string, recursive bool) ([]*unstructured.Unstructured, error) {
	if from == "-" {
		return documents("standard input", s.In)
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
		docs, err := documents(name, file)
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
