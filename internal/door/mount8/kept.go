package mount8

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// subdir is an option by which mount(8) shows a directory of a filesystem instead of all of it, but not for types that
// have a helper: it keeps the option to itself, and does nothing.
const subdir = "X-mount.subdir"

var errSubdir = fmt.Errorf("%w: %s: a volume is mounted as a whole: mount it at another directory, and the directory "+
	"in it by mount --bind", ErrUsage, subdir)

// kept returns the arguments of mount(8), which has called this program, and the line for a path in fstab.
func kept(dir string) (arguments, fstab string) {
	// If they cannot be read, nothing is known about them.
	caller, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid()))
	table, _ := os.ReadFile("/etc/fstab")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && filepath.Clean(unescape(fields[1])) == dir && fields[2] == "volplane" {
			fstab = fields[3]
		}
	}
	return string(caller), fstab
}

// wantsSubdir says whether one of several lists of options, or of the arguments of mount(8), has the option subdir.
func wantsSubdir(lists ...string) bool {
	options := strings.FieldsFunc(strings.Join(lists, ","), func(r rune) bool { return r == 0 || r == ',' })
	return slices.ContainsFunc(options, func(option string) bool {
		for _, flag := range []string{"-o", "--options="} {
			option = strings.TrimPrefix(option, flag)
		}
		name, _, _ := strings.Cut(option, "=")
		return name == subdir
	})
}
