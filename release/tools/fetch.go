package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Package is a package of Debian.
type Package struct {
	Name, Version, Arch string
	// SHA256 is the sum of its file.
	SHA256 string
}

// packages are those with the programs, and with the libraries that they load.
func packages() []string {
	return []string{
		"btrfs-progs", "e2fsprogs", "mount", "util-linux", "xfsprogs",
		"libblkid1", "libc6", "libcom-err2", "libext2fs2", "libinih1", "liblzo2-2", "libmount1", "libpcre2-8-0",
		"libselinux1", "libudev1", "liburcu8", "libuuid1", "libzstd1", "zlib1g",
	}
}

// Fetch loads the packages for an architecture into dir and unpacks them below dir/root. It returns them in the order
// of their names.
func Fetch(ctx context.Context, arch, dir string) ([]Package, error) {
	state, debs, root := filepath.Join(dir, "apt"), filepath.Join(dir, "debs"), filepath.Join(dir, "root")
	partial := []string{filepath.Join(state, "lists", "partial"), filepath.Join(state, "archives", "partial")}
	for _, d := range append(partial, debs, root) {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, err
		}
	}
	// With its own state, apt supports architectures other than the machine's, and considers nothing installed.
	options := []string{
		"-qq", "-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch, "-o", "Dir::State=" + state,
		"-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache=" + state, "-o", "APT::Sandbox::User=root",
	}
	if err := run(ctx, debs, "apt-get", append(slices.Clone(options), "update")...); err != nil {
		return nil, err
	}
	if err := run(ctx, debs, "apt-get", append(append(slices.Clone(options), "download"), packages()...)...); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return nil, err
	}
	slices.Sort(found)
	out := make([]Package, 0, len(found))
	for _, deb := range found {
		p, err := unpack(ctx, deb, root)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// unpack unpacks a package, and returns its description.
func unpack(ctx context.Context, deb, root string) (Package, error) {
	data, err := os.ReadFile(deb)
	if err != nil {
		return Package{}, err
	}
	format := "--showformat=${Package} ${Version} ${Architecture}"
	out, err := exec.CommandContext(ctx, "dpkg-deb", "--show", format, deb).Output()
	if err != nil {
		return Package{}, fmt.Errorf("dpkg-deb --show %s: %w", filepath.Base(deb), err)
	}
	words := strings.Fields(string(out))
	if len(words) != 3 {
		return Package{}, fmt.Errorf("%s says that it is %q", filepath.Base(deb), out)
	}
	sum := sha256.Sum256(data)
	return Package{Name: words[0], Version: words[1], Arch: words[2], SHA256: hex.EncodeToString(sum[:])},
		run(ctx, root, "dpkg-deb", "-x", deb, root)
}

// run runs a program in a directory; its error includes its output.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[len(args)-1], err, strings.TrimSpace(string(out)))
	}
	return nil
}
