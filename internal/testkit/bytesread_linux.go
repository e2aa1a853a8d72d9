package testkit

import (
	"fmt"
	"os"
	"testing"
)

// BytesRead returns how many bytes the calling thread has read, of /proc as well. The goroutine must be locked to it.
func BytesRead(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/io")
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
