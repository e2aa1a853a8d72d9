package tools

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"volplane.dev/volplane/release/tree"
)

// programs are the programs that volplane starts, on nodes and in the bundled driver.
func programs() []string {
	return []string{
		"blkid", "btrfs", "btrfstune", "e2fsck", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "mount", "resize2fs", "umount",
		"xfs_growfs",
	}
}

// data are files that these programs read.
func data() []string { return []string{"etc/mke2fs.conf", "usr/share/xfsprogs/mkfs/*.conf"} }

// Select returns the programs, their libraries and their licences from unpacked packages, as the root of an image.
// Everything is below usr, with links where programs expect it elsewhere.
func Select(root string) (tree.Tree, error) {
	s := &selection{root: root, taken: map[string]bool{}}
	for _, name := range programs() {
		if err := s.program(name); err != nil {
			return nil, err
		}
	}
	for _, pattern := range append(data(), "usr/share/doc/*/copyright") {
		if err := s.copy(pattern); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		s.files = append(s.files, tree.Link(dir, path.Join("usr", strings.TrimSuffix(dir, "64"))))
	}
	for _, dir := range []string{"proc", "sys", "dev", "run"} {
		s.files = append(s.files, tree.Directory(dir))
	}
	// Programs read it to see whether something is mounted.
	return append(s.files, tree.Link("etc/mtab", "../proc/self/mounts")), nil
}

// selection is what was taken so far.
type selection struct {
	root  string
	files tree.Tree
	taken map[string]bool
}

// program adds a program, the program to which its name is a link, and their libraries.
func (s *selection) program(name string) error {
	at, err := s.find(name, "sbin", "bin", "usr/sbin", "usr/bin")
	if err != nil {
		return err
	}
	to := path.Join("usr/sbin", name)
	if link, err := os.Readlink(at); err == nil {
		if !s.take(to) {
			return nil
		}
		s.files = append(s.files, tree.Link(to, path.Base(link)))
		return s.program(path.Base(link))
	}
	return s.elf(at, to)
}

// elf adds a program or library and everything that it loads.
func (s *selection) elf(at, to string) error {
	if !s.take(to) {
		return nil
	}
	body, err := os.ReadFile(at)
	if err != nil {
		return err
	}
	s.files = append(s.files, tree.Program(to, body))
	f, err := elf.Open(at)
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	if p := f.Section(".interp"); p != nil {
		name, err := p.Data()
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		needed = append(needed, path.Base(strings.TrimRight(string(name), "\x00")))
	}
	for _, name := range needed {
		if err := s.library(name, to); err != nil {
			return err
		}
	}
	return nil
}

// library adds a library under the name that programs load.
func (s *selection) library(name, by string) error {
	at, err := s.find(name, "lib/*-linux-gnu", "usr/lib/*-linux-gnu", "lib", "lib64")
	if err != nil {
		return fmt.Errorf("%s needs %w", by, err)
	}
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(real, s.root+string(filepath.Separator)) {
		return fmt.Errorf("%s leads out of the packages, to %s", name, real)
	}
	return s.elf(real, path.Join("usr/lib", name))
}

// find returns where a file is, in the first of the directories that has it.
func (s *selection) find(name string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(s.root, dir, name))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			slices.Sort(found)
			return found[0], nil
		}
	}
	return "", errors.New(name + ", which no package has")
}

// take says whether a file is still missing.
func (s *selection) take(to string) bool {
	if s.taken[to] {
		return false
	}
	s.taken[to] = true
	return true
}

// copy takes the files that match a pattern; there must be one.
func (s *selection) copy(pattern string) error {
	found, err := filepath.Glob(filepath.Join(s.root, pattern))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("no package has %s", pattern)
	}
	slices.Sort(found)
	for _, at := range found {
		// A package with the licence of another one has a link.
		body, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		to, err := filepath.Rel(s.root, at)
		if err != nil {
			return err
		}
		s.files = append(s.files, tree.File{Path: filepath.ToSlash(to), Mode: 0o644, Body: body})
	}
	return nil
}
