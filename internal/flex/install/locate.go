package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// Locate returns the path and the name of a driver that is given by the path of its file or, if it is installed, by its
// name.
func Locate(subject string, o Options) (path string, name decide.Name, err error) {
	dir := ""
	if info, err := os.Stat(subject); err == nil && info.Mode().IsRegular() {
		// A path may look like a driver's name; an existing file takes precedence.
		if subject, err = filepath.Abs(subject); err != nil {
			return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
		}
	} else {
		// Nothing may be installed into the directory, and the driver be there nevertheless.
		d, _ := o.find()
		dir = d.Path
	}
	if path, name, err = locate(subject, dir); err != nil {
		return "", name, err
	}
	if _, err := os.Stat(path); err != nil {
		return "", name, fmt.Errorf("find driver %s: %w: give the path of a file, or the name of one that 'volplane "+
			"flex list' shows", subject, err)
	}
	return path, name, nil
}

// locate returns the path and the name of a driver that is given by its path ("/x/lofs", "./lofs")
// or, if it is installed in a plugin directory, by its name.
func locate(subject, pluginDir string) (path string, name decide.Name, err error) {
	if strings.HasPrefix(subject, "/") || strings.HasPrefix(subject, ".") {
		if path, err = filepath.Abs(subject); err != nil {
			return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
		}
		name, err = decide.ParseDir(filepath.Base(filepath.Dir(path)))
		if err != nil || name.Driver != filepath.Base(path) {
			name, err = decide.ParseName(filepath.Base(path))
		}
		return path, name, err
	}
	if name, err = decide.ParseName(subject); err != nil {
		return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
	}
	return filepath.Join(pluginDir, name.Dir(), name.Driver), name, nil
}
