package socket_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/process/socket"
)

// child is the environment variable that names the socket which this test's own child asks for.
const child = "SOCKET_TEST_CHILD"

// TestInherited: the socket of a name is found among those that systemd hands over, and only by the process that they
// are for.
func TestInherited(t *testing.T) {
	if name, is := os.LookupEnv(child); is {
		answerInherited(t, name)
		return
	}
	path := filepath.Join(short(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct{ pid, names, name, want string }{
		{"$$", "other:docker", "docker", path},
		{"$$", "other:docker", "absent", "none"},
		{"1", "other:docker", "docker", "none"},
		{"$$", "docker", "docker", "error"},
	} {
		cmd := exec.Command("sh", "-c", "LISTEN_PID="+c.pid+` exec "$0" -test.run=TestInherited`, os.Args[0])
		cmd.Env = append(os.Environ(), child+"="+c.name, "LISTEN_FDS=2", "LISTEN_FDNAMES="+c.names)
		cmd.ExtraFiles = []*os.File{os.Stdin, file}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "inherited "+c.want+"\n") {
			t.Errorf("%+v: %v: %s", c, err, out)
		}
	}
}

func answerInherited(t *testing.T, name string) {
	t.Helper()
	l, err := socket.Inherited(name)
	switch {
	case err != nil:
		_, _ = os.Stdout.WriteString("inherited error\n")
	case l == nil:
		_, _ = os.Stdout.WriteString("inherited none\n")
	default:
		_, _ = os.Stdout.WriteString("inherited " + l.Addr().String() + "\n")
	}
}
