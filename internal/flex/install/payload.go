package install

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/flex/host"
)

// Limits of the directory that is installed with a driver.
const (
	maxPayloadFiles = 10000
	maxPayloadBytes = 4 << 30
)

// A driver with more than one file has a directory for each version outside of the plugin
// directory, because each file there would cost a call of init. The installed driver is a script of
// two lines that starts one version: so the version is changed by one rename, as for any driver.
const wrapper = "#!/bin/sh\nexec '%s' \"$@\"\n"

// wrappedVersion returns the directory of the version that a wrapper script starts; "" for other files.
func wrappedVersion(script []byte) string {
	rest, found := bytes.CutPrefix(script, []byte("#!/bin/sh\nexec '"))
	if !found {
		return ""
	}
	path, end, _ := strings.Cut(string(rest), "'")
	if end != " \"$@\"\n" {
		return ""
	}
	return filepath.Dir(path)
}

// payloadHome returns the directory of all versions of a driver.
func payloadHome(c change) (string, error) {
	dir := cmp.Or(c.PayloadDir, filepath.Join(filepath.Dir(c.directory.Path), "flex-payload"))
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || strings.ContainsAny(dir, "'\n") {
		return "", fmt.Errorf("payload directory %q: want an absolute path without quotes", dir)
	}
	return filepath.Join(dir, c.name.Dir()), nil
}

// fillPayload copies a directory to its final place and makes the wrapper the staged driver.
func (s *stage) fillPayload(c change) (string, error) {
	if c.PayloadDir == "" && c.NoInit {
		return "", errors.New("payload directory: it must be named, because only the plugin directory is known to be " +
			"the host's")
	}
	home, err := payloadHome(c)
	if err != nil {
		return "", err
	}
	if problem := Problem(home); problem != "" {
		return "", fmt.Errorf("payload directory: %s", problem)
	}
	hash, err := treeHash(c.Source)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(home, 0o755); err != nil { // #nosec G301 -- drivers of other users read it
		return "", fmt.Errorf("make payload directory: %w", err)
	}
	version := filepath.Join(home, hash)
	err = errors.Join(checkRootOwned(filepath.Dir(home)), checkRootOwned(home))
	if _, absent := os.Stat(version); err == nil && absent != nil {
		err = copyTree(c.Source, version, c.name.Driver)
	}
	// The version is started as root, so no other user may have created it.
	if err = cmp.Or(err, checkRootOwned(version)); err != nil {
		return "", fmt.Errorf("payload directory: %w", err)
	}
	exe := filepath.Join(version, c.name.Driver)
	if err := check.Executable(exe); err != nil {
		return "", fmt.Errorf("%s holds no executable %s", c.Source, c.name.Driver)
	}
	return version, writeFile(s.exe, strings.NewReader(fmt.Sprintf(wrapper, exe)), 0o700)
}

// copyTree copies a directory to a new one, which appears when it is complete. exe becomes
// executable, as a driver of one file does.
func copyTree(from, to, exe string) error {
	partial := to + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("copy payload: %w", err)
	}
	err := walkTree(from, func(rel string, info fs.FileInfo) error {
		target := filepath.Join(partial, rel)
		switch {
		case info.IsDir():
			return os.Mkdir(target, 0o755) // #nosec G301 -- as above
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(filepath.Join(from, rel))
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o111 != 0 || rel == exe {
			mode = 0o755
		}
		return copyFile(filepath.Join(from, rel), target, mode)
	})
	if err == nil {
		err = os.Rename(partial, to)
	}
	if err == nil {
		err = durable.Sync(filepath.Dir(to))
	}
	if err != nil {
		return fmt.Errorf("copy payload: %w", errors.Join(err, os.RemoveAll(partial)))
	}
	return nil
}

// treeHash returns the first digits of a SHA-256 over the names, types and contents of all files in a directory.
func treeHash(dir string) (string, error) {
	h := sha256.New()
	err := walkTree(dir, func(rel string, info fs.FileInfo) error {
		fmt.Fprintf(h, "%q %v %t\n", rel, info.Mode().Type(), info.Mode()&0o111 != 0 && !info.IsDir())
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(filepath.Join(dir, rel))
			fmt.Fprintf(h, "%q\n", link)
			return err
		case info.IsDir():
			return nil
		}
		f, err := os.Open(filepath.Join(dir, rel))
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := io.Copy(h, f)
		fmt.Fprintf(h, "\n%d\n", n)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read payload: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// walkTree visits a directory and everything in it, ordered by name. Only directories, files, and
// links that stay inside are allowed.
func walkTree(dir string, visit func(rel string, info fs.FileInfo) error) error {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	files, size := 0, int64(0)
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files, size = files+1, size+info.Size()
		if files > maxPayloadFiles || size > maxPayloadBytes {
			return fmt.Errorf("%s holds more than %d files or %d bytes", dir, maxPayloadFiles, int64(maxPayloadBytes))
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if err := checkInside(path, rel, info); err != nil {
			return err
		}
		return visit(rel, info)
	})
}

// checkInside refuses everything but directories, files, and links to files of the same tree.
func checkInside(path, rel string, info fs.FileInfo) error {
	switch {
	case info.IsDir() || info.Mode().IsRegular():
		return nil
	case info.Mode()&fs.ModeSymlink == 0:
		return fmt.Errorf("%s is a special file", path)
	}
	link, err := os.Readlink(path)
	if err != nil {
		return err
	}
	// Together with other links, it can lead elsewhere than it says.
	if real, err := filepath.EvalSymlinks(path); err == nil &&
		!strings.HasPrefix(real+"/", strings.TrimSuffix(path, rel)) {
		return fmt.Errorf("the symbolic link %s leads out of the directory", path)
	}
	if filepath.IsAbs(link) || !filepath.IsLocal(filepath.Join(filepath.Dir(rel), link)) {
		return fmt.Errorf("the symbolic link %s leads out of the directory", path)
	}
	return nil
}

// prune removes the versions that neither the driver, nor its previous version, nor a kept copy starts.
func (p *place) prune(c change) error {
	home, err := payloadHome(c)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove old payload: %w", err)
	}
	used := map[string]bool{}
	for _, exe := range append(p.keptBy(c.RootDir), p.exe, p.beside("previous"), p.beside("removed")) {
		script, err := readHead(exe)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		used[wrappedVersion(script)] = true
	}
	for _, e := range entries {
		if version := filepath.Join(home, e.Name()); !used[version] {
			if err := os.RemoveAll(version); err != nil {
				return fmt.Errorf("remove old payload: %w", err)
			}
		}
	}
	// This fails unless the directory is empty.
	_ = os.Remove(home)
	return nil
}

// keptBy returns the executables that the bridge of a root directory keeps to unmount volumes.
func (p *place) keptBy(root string) []string {
	dir := host.KeptDir(filepath.Join(root, "state"), p.name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // there is no bridge, or it keeps no copy
	}
	var all []string
	for _, e := range entries {
		all = append(all, filepath.Join(dir, e.Name(), p.name.Driver))
	}
	return all
}

// dropPayload removes all versions except those that a kept copy starts.
func (p *place) dropPayload(c change, kept bool) error {
	if kept {
		return p.prune(c)
	}
	home, err := payloadHome(c)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(home); err != nil {
		return fmt.Errorf("remove payload: %w", err)
	}
	return nil
}

// readHead reads the first bytes of a file, as many as a wrapper can have.
func readHead(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const most = 8 << 10
	return io.ReadAll(io.LimitReader(f, most))
}
