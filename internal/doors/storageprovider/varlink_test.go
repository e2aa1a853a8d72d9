package storageprovider

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/doors/users"
	"volplane.dev/volplane/internal/doors/users/userstest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/options"
)

const info = `{"method":"org.varlink.service.GetInfo"}` + "\x00"

// TestSocket: a caller receives answers in the order of its calls, and an invalid message closes the connection.
func TestSocket(t *testing.T) {
	path := listen(t)
	const mistaken = `{"method":"x","parameters":{},"more":true}` + "\x00"
	for name, c := range map[string]struct {
		sent string
		want []string
	}{
		"calls in a row": {info + mistaken + info, []string{
			`"product":"volplane"`, `"error":"org.varlink.service.MethodNotFound","parameters":{"method":"x"}`, `"url"`,
		}},
		"a call without an answer": {
			strings.Replace(info, "}", `,"oneway":true}`, 1) + mistaken, []string{"MethodNotFound"},
		},
		"no JSON":            {"GET / HTTP/1.1\r\n\r\n\x00" + info, nil},
		"no call":            {`{"error":"x"}` + "\x00" + info, nil},
		"a call of no text":  {`{"method":7}` + "\x00" + info, nil},
		"a call without end": {`{"method":"` + strings.Repeat("x", messageLimit), nil},
		"half a call":        {info + info[:10], []string{"volplane"}},
		"a longest call": {
			`{"method":"` + strings.Repeat("x", messageLimit-100) + `"}` + "\x00", []string{"MethodNotFound"},
		},
		"a deep call": {
			`{"method":"` + ofProvider + `ListTemplates","more":true,"parameters":{"matchName":` +
				strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}}\x00", []string{"InvalidParameter"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, path)
			go func() {
				_, _ = io.WriteString(conn, c.sent)
				_ = conn.CloseWrite()
			}()
			all, _ := io.ReadAll(conn) // reset if something was not read
			got := strings.Split(strings.TrimSuffix(string(all), "\x00"), "\x00")
			if len(all) == 0 {
				got = nil
			}
			if len(got) != len(c.want) {
				t.Fatalf("%.500q", got)
			}
			for i, want := range c.want {
				if !strings.Contains(got[i], want) || !json.Valid([]byte(got[i])) {
					t.Errorf("%.500s, want %s", got[i], want)
				}
			}
		})
	}
}

// TestMany: callers that say nothing leave room for others as soon as they go.
func TestMany(t *testing.T) {
	path := listen(t)
	var silent []*net.UnixConn
	for range connectionLimit {
		silent = append(silent, dial(t, path))
	}
	conn := dial(t, path)
	if _, err := io.WriteString(conn, info); err != nil {
		t.Fatal(err)
	}
	for _, c := range silent {
		_ = c.Close()
	}
	if text, err := bufio.NewReader(conn).ReadString(0); err != nil || !strings.Contains(text, "volplane") {
		t.Error(text, err)
	}
}

// TestDescriptions: a caller gets the text of each interface.
func TestDescriptions(t *testing.T) {
	conn := dial(t, listen(t))
	answers := bufio.NewReader(conn)
	for name := range descriptions() {
		q := `{"method":"org.varlink.service.GetInterfaceDescription","parameters":{"interface":"` + name + `"}}` + "\x00"
		if _, err := io.WriteString(conn, q); err != nil {
			t.Fatal(err)
		}
		var r reply
		text, err := answers.ReadBytes(0)
		if err != nil || json.Unmarshal(text[:len(text)-1], &r) != nil ||
			!strings.Contains(r.Parameters["description"].(string), "\ninterface "+name+"\n") {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

// TestPassed: a caller gets a directory with the answer, and a volume that is not mounted any more is not opened.
func TestPassed(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := openVolume(dir, false, false); err == nil {
		t.Error("a directory was opened where nothing is mounted")
	}
	if err := unix.Mount("volume", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := mount.Unmount(dir); err != nil {
			t.Error(err)
		}
	}()
	volume := opens(t, dir, false)
	ours, theirs := pair(t)
	if err := passed(func(r reply, f *os.File) error { return write(ours, call{}, r, f) }, reply{}, volume); err != nil {
		t.Fatal(err)
	}
	fd := received(t, theirs)
	of, err := inUse(t.Context(), mount.Inside(dir))
	point, _ := mounted(dir)
	if err != nil || !of(point) {
		t.Error("a volume that a caller has is not in use", err)
	}
	_ = unix.Close(fd)
	if of, err = inUse(t.Context(), mount.Inside(dir)); err != nil || of(point) {
		t.Error("a volume that nobody has is in use", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_ = opens(t, dir, true).Close()
}

func opens(t *testing.T, dir string, wantReadOnly bool) *os.File {
	t.Helper()
	volume, readOnly, err := openVolume(dir, false, false)
	if err != nil || readOnly != wantReadOnly {
		t.Fatal(readOnly, err)
	}
	return volume
}

// received returns the descriptor that comes with an empty answer.
func received(t *testing.T, theirs *net.UnixConn) int {
	t.Helper()
	text, control := make([]byte, 100), make([]byte, 100)
	n, nc, _, _, err := theirs.ReadMsgUnix(text, control)
	if err != nil || string(text[:n]) != `{"parameters":{}}`+"\x00" {
		t.Errorf("%q, %v", text[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:nc])
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	rights, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(rights) != 1 {
		t.Fatal(rights, err)
	}
	return rights[0]
}

// TestGone: the server does not wait for a caller that has disconnected, and half an answer is never followed by
// another one.
func TestGone(t *testing.T) {
	ours, theirs := pair(t)
	_ = theirs.Close()
	if write(ours, call{Oneway: true}, reply{}, nil) != nil {
		t.Error("an answer was written that nobody wants")
	}
	if write(ours, call{}, reply{}, nil) == nil || ours.CloseWrite() == nil {
		t.Error("the connection is open after an error")
	}
}

func listen(t *testing.T) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "provider", "volplane")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := newDoor(options.DoorOptions{
		Namespace: userstest.Namespace, Node: userstest.Node, Grace: options.StorageGrace,
		Log: slog.New(slog.DiscardHandler),
	}, kubetest.NewAPI(t), users.Kernel{}, openVolume)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("a provider that has ended is listed")
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return path
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 0, len(fds))
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends = append(ends, c.(*net.UnixConn))
		t.Cleanup(func() { _ = c.Close() })
	}
	return ends[0], ends[1]
}

// FuzzRequest: whatever a caller says, a request names a claim that may exist, or there is none.
func FuzzRequest(f *testing.F) {
	f.Add(`{"name":"data","createMode":"any","readOnly":null,"createSizeBytes":1}`)
	f.Add(`{"name":"../data"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, parameters string) {
		w, err := requestOf(call{Parameters: json.RawMessage(parameters)})
		if err == nil && (w.name == "" || strings.ContainsAny(w.name, "/ \x00") || w.size < 0 || w.kind == file) {
			t.Errorf("%+v", w)
		}
	})
}
