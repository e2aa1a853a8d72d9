package plane

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// ProcessesOf returns the living processes that have dir on their command line.
func ProcessesOf(dir string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			continue
		}
		if line, err := os.ReadFile(f); err == nil && bytes.Contains(line, []byte(dir)) {
			out = append(out, pid)
		}
	}
	return out
}
