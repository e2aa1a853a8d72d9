package mount

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// kernel returns the kernel's own uses of the mounts or the device, on behalf of no process that could be ended: loop
// devices over files on them, swap space, and devices built on the device, such as those of LVM.
func (s *scan) kernel() []Holder {
	var out []Holder
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range loops {
		text, _ := os.ReadFile(file)
		if s.uses(strings.TrimSuffix(string(text), "\n")) {
			out = append(out, Holder{Use: "loop device /dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))})
		}
	}
	swaps, _ := os.ReadFile("/proc/swaps")
	for line := range strings.Lines(string(swaps)) {
		path, _, _ := strings.Cut(line, " ")
		// The kernel writes a blank as \040, for example.
		if path, err := strconv.Unquote(`"` + strings.ReplaceAll(path, `"`, `\"`) + `"`); err == nil && s.uses(path) {
			out = append(out, Holder{Use: "swap space " + printable(path)})
		}
	}
	if s.device != "" {
		made, _ := os.ReadDir("/sys/dev/block/" + s.device + "/holders")
		for _, one := range made {
			out = append(out, Holder{Use: "device /dev/" + one.Name()})
		}
	}
	return out
}

// uses says whether a file that the kernel uses is on one of the mounts, or is the device. Other files are not
// accessed: their filesystem may not answer.
func (s *scan) uses(path string) bool {
	below := func(mount string) bool { return isBelow(path, mount) }
	return (path == s.source || slices.ContainsFunc(s.paths, below)) && s.at(path)
}

// printable replaces characters that a terminal should not receive.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
