package app

import (
	"os"
	"strings"
)

const (
	// terminationLog is where a kubelet reads why a container has ended.
	terminationLog = "/dev/termination-log"
	// terminationLimit is how much of it a kubelet reads.
	terminationLimit = 4096
)

// tellTermination writes why the process ends to a file, if that exists: elsewhere than in a container it does not. A
// text that cannot be written is still in the program's log.
func tellTermination(file string, err error) {
	if err == nil {
		return
	}
	f, open := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if open != nil {
		return
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	_, _ = f.WriteString(text[:min(len(text), terminationLimit-1)] + "\n")
	_ = f.Close()
}
