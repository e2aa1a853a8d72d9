package standalonetest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// memoryFiles is where Linux keeps files in memory.
	memoryFiles = "/dev/shm"
	// memoryNeeded is how much must be free there: an etcd reserves 128 MB when it starts.
	memoryNeeded = 1 << 30
	// prefix begins the name of a directory.
	prefix = "api-"
)

// MakeDir makes a directory for a server that does not sync its data: in memory if there is room, otherwise where
// temporary files are. An etcd that omits fsync still waits for the disk when it begins a file of its log; beside tests
// that write much, that took as long as a request may take. The path is short, because that of a unix socket has at
// most 107 bytes. The caller removes the directory.
func MakeDir() (string, error) {
	if hasRoom(memoryFiles) {
		if dir, err := os.MkdirTemp(memoryFiles, prefix); err == nil {
			return dir, nil
		}
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", fmt.Errorf("make a directory for a test's data: %w", err)
	}
	return dir, nil
}

// Dir makes such a directory for a test, and removes it at the test's end.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := MakeDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func hasRoom(dir string) bool {
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	return err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) >= memoryNeeded
}
