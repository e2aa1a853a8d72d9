package socket

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstInherited is the descriptor of the first socket that systemd hands over.
const firstInherited = 3

// Inherited returns the socket that systemd has made under a name (FileDescriptorName=) and handed over to this
// process; nil if there is none. The socket's file stays when it is closed, since it is systemd's.
func Inherited(name string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	at := slices.Index(strings.Split(os.Getenv("LISTEN_FDNAMES"), ":"), name)
	if err != nil || at < 0 || at >= n {
		return nil, nil
	}
	fd := firstInherited + at
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("socket %s of systemd: %w", name, err)
	}
	return l, nil
}
