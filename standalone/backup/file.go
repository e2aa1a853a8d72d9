package backup

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"volplane.dev/volplane/internal/durable"
)

// format is the version of the files that this program writes; it also reads earlier versions.
const format = 1

// Names in the archive.
const (
	snapshotName = "etcd.snapshot"
	manifestName = "manifest.json"
)

const (
	// maxFile limits the size of each file except the snapshot, maxSnapshot the size of
	// the snapshot, and maxFiles the number of files.
	maxFile     = 1 << 20
	maxSnapshot = 64 << 30
	maxFiles    = 1000
)

// Reasons why a backup is refused.
var (
	ErrBroken = errors.New("backup cannot be used")
	ErrNewer  = errors.New("backup of a newer version")
)

// Manifest describes a backup.
type Manifest struct {
	Format int       `json:"format"`
	Made   time.Time `json:"made"`
	// Version is the version of the program that made it, and Reason why it was made.
	Version string `json:"version"`
	Reason  string `json:"reason"`
	// Keys is the number of keys in etcd, Revision the last revision.
	Keys     int   `json:"keys"`
	Revision int64 `json:"revision"`
	// Sums are the SHA-256 checksums of all files.
	Sums map[string]string `json:"sums"`
}

// kept returns the files and directories of a data directory that a backup contains in addition to the snapshot, if
// they exist.
func kept() []string { return []string{"format", "pki", driversDir} }

// write writes an archive of a data directory and of a snapshot.
func write(to io.Writer, dir *os.Root, snapshot string, m Manifest) error {
	z := gzip.NewWriter(to)
	t := tar.NewWriter(z)
	m.Format, m.Sums = format, map[string]string{}
	add := func(name string, f fs.File) error {
		info, err := f.Stat()
		if err != nil || inDrivers(name) && !describesDriver(name, info.Size()) {
			return err
		}
		m.Sums[name], err = addFile(t, name, info.Size(), f)
		return err
	}
	for _, top := range kept() {
		if err := eachFile(dir, top, add); err != nil {
			return err
		}
	}
	f, err := os.Open(snapshot)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := add(snapshotName, f); err != nil {
		return err
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := t.WriteHeader(header(manifestName, int64(len(data)))); err != nil {
		return err
	}
	if _, err := t.Write(data); err != nil {
		return err
	}
	return errors.Join(t.Close(), z.Close())
}

func header(name string, size int64) *tar.Header {
	return &tar.Header{Name: name, Size: size, Mode: 0o600, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
}

// addFile returns the sum of what it has added.
func addFile(t *tar.Writer, name string, size int64, from io.Reader) (sum string, err error) {
	if err := t.WriteHeader(header(name, size)); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(t, h), from, size); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// eachFile visits a file, or the files in a folder, if it exists. A draft of a file means nothing.
func eachFile(dir *os.Root, top string, visit func(name string, f fs.File) error) error {
	return fs.WalkDir(dir.FS(), top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == top {
			return nil
		}
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) == durable.Draft {
			return err
		}
		f, err := dir.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return visit(path, f)
	})
}

// extract writes the content of an archive below a directory, and returns the manifest if everything matches it.
func extract(from io.Reader, into *os.Root) (Manifest, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return Manifest{}, err
	}
	sums := map[string]string{}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err != nil {
			return Manifest{}, fmt.Errorf("it is truncated: %w", err)
		}
		if h.Name == manifestName {
			m, err := readManifest(t, sums)
			if err == nil {
				// The sum of the whole is at its end.
				err = atEnd(z)
			}
			return m, err
		}
		if err := acceptable(h, sums); err != nil {
			return Manifest{}, err
		}
		if sums[h.Name], err = extractFile(t, h, into); err != nil {
			return Manifest{}, fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
}

// atEnd reads the padding of an archive, which makes gzip check its sum.
func atEnd(z io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(z, maxFile))
	if err == nil && n == maxFile {
		err = errors.New("it continues after its end")
	}
	return err
}

// acceptable refuses what no backup has.
func acceptable(h *tar.Header, before map[string]string) error {
	most := int64(maxFile)
	if h.Name == snapshotName {
		most = maxSnapshot
	}
	_, twice := before[h.Name]
	known := h.Name == snapshotName || isKept(h)
	if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) || filepath.Clean(h.Name) != h.Name || !known || twice ||
		h.Size > most || len(before) >= maxFiles {
		return fmt.Errorf("%.200q of %d bytes is not part of a backup", h.Name, h.Size)
	}
	return nil
}

// isKept says whether a backup includes a file of a data directory.
func isKept(h *tar.Header) bool {
	below := slices.ContainsFunc(kept(), func(top string) bool {
		rel, err := filepath.Rel(top, h.Name)
		return err == nil && filepath.IsLocal(rel)
	})
	return below && (!inDrivers(h.Name) || describesDriver(h.Name, h.Size))
}

func extractFile(from io.Reader, h *tar.Header, into *os.Root) (sum string, err error) {
	if err := into.MkdirAll(filepath.Dir(h.Name), 0o700); err != nil {
		return "", err
	}
	f, err := into.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	s := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, s), from, h.Size)
	return hex.EncodeToString(s.Sum(nil)), errors.Join(err, f.Sync(), f.Close())
}

func readManifest(from io.Reader, sums map[string]string) (m Manifest, err error) {
	data, err := io.ReadAll(io.LimitReader(from, maxFile))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return m, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	if m.Format > format {
		return m, fmt.Errorf("%w: it has format %d, this program knows %d", ErrNewer, m.Format, format)
	}
	for name, sum := range sums {
		if m.Sums[name] != sum {
			return m, fmt.Errorf("%.200q is not what it was", name)
		}
	}
	for name := range m.Sums {
		if sums[name] == "" {
			return m, fmt.Errorf("%.200q is missing", name)
		}
	}
	return m, nil
}

const (
	// driversDir is the directory of the files about CSI drivers.
	driversDir = "drivers.d"
	// maxDriver limits the size of a file about a driver; a larger file is not one.
	maxDriver = 64 << 10
)

func inDrivers(path string) bool {
	return path == driversDir || strings.HasPrefix(path, driversDir+"/")
}

// describesDriver says whether a file in driversDir may describe a driver: users may keep other files there.
func describesDriver(path string, size int64) bool {
	ext := filepath.Ext(path)
	return filepath.Dir(path) == driversDir && (ext == ".yaml" || ext == ".yml") && size <= maxDriver &&
		!strings.HasPrefix(filepath.Base(path), ".")
}

// addDrivers moves the files about drivers from work to dir, except those of drivers for which dir has a file: the
// host's current programs stay unchanged, because the end of a program may end mounts.
func addDrivers(dir, work string) error {
	from, to := filepath.Join(work, driversDir), filepath.Join(dir, driversDir)
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	there, err := os.ReadDir(to)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	name := func(e fs.DirEntry) string { return strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())) }
	for _, e := range entries {
		if slices.ContainsFunc(there, func(other fs.DirEntry) bool { return name(other) == name(e) }) {
			continue
		}
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return fmt.Errorf("restore: %w; run it again", err)
		}
	}
	return errors.Join(durable.Sync(to), os.RemoveAll(from))
}
