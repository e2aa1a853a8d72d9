package storageprovider

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// messageLimit is more than any call needs.
	messageLimit = 64 << 10
	// callLimit is less than the 45 seconds that systemd waits for an answer: the log is to say what is waited for.
	callLimit = 40 * time.Second
	// idleLimit is how long a caller may take for its next call, and writeLimit to read an answer.
	idleLimit  = 2 * time.Minute
	writeLimit = 10 * time.Second
	// connectionLimit is how many callers are served at the same time; others wait.
	connectionLimit = 64
)

// call is a message of a caller.
type call struct {
	Method     string
	Parameters json.RawMessage
	More       bool
	Oneway     bool
	Upgrade    bool
}

// reply is a message to a caller.
type reply struct {
	Error      string         `json:"error,omitempty"`
	Parameters map[string]any `json:"parameters"`
	Continues  bool           `json:"continues,omitempty"`
}

// failure is an error that has a name in Varlink.
type failure struct {
	name       string
	parameters map[string]any
	// because is what the caller's interface has no place for.
	because string
}

func (f failure) Error() string { return cmp.Or(f.because, f.name) }

// Errors of the interfaces.
const (
	ofService  = "org.varlink.service."
	ofProvider = "io.systemd.StorageProvider."
)

func fails(name string) error { return failure{name: ofProvider + name} }

func invalid(parameter string) error {
	return failure{name: ofService + "InvalidParameter", parameters: map[string]any{"parameter": parameter}}
}

// asReply returns the answer that an error is. One without a name is of the kind that systemd has for errors of the
// system, with a message that only those see who look.
func asReply(err error) reply {
	var f failure
	if errors.As(err, &f) {
		return reply{Error: f.name, Parameters: f.parameters}
	}
	number := unix.EIO
	if errors.Is(err, context.DeadlineExceeded) {
		number = unix.ETIMEDOUT
	}
	_ = errors.As(err, &number)
	return reply{Error: "io.systemd.System", Parameters: map[string]any{
		"origin": "linux", "errno": int(number), "errnoName": unix.ErrnoName(number), "message": err.Error(),
	}}
}

// answers takes the answers to one call. The file is passed to the caller with the answer, and stays open.
type answers func(r reply, file *os.File) error

// serve answers calls until ctx ends. Calls that run then fail.
func (d *Door) serve(ctx context.Context, l *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var work sync.WaitGroup
	defer work.Wait()
	free := make(chan struct{}, connectionLimit)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := accept(ctx, l)
		if err != nil {
			return err
		}
		if c == nil {
			return nil
		}
		work.Go(func() {
			defer func() { <-free }()
			d.converse(ctx, c)
		})
	}
}

// accept returns the next connection, or nil when ctx ends.
func accept(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	for {
		c, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // the listener was closed
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			// It passes: this process, or the host, has too many files open.
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		case err != nil:
			return nil, fmt.Errorf("serve systemd: %w", err)
		default:
			return c, nil
		}
	}
}

// converse answers the calls of one connection, one after the other.
func (d *Door) converse(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	mine := allowed(c)
	calls := bufio.NewScanner(c)
	calls.Buffer(make([]byte, 0, 4<<10), messageLimit)
	calls.Split(messages)
	for c.SetReadDeadline(time.Now().Add(idleLimit)) == nil && calls.Scan() {
		var q call
		if err := json.Unmarshal(calls.Bytes(), &q); err != nil || q.Method == "" {
			d.log.Info("storage provider: a message is not a call, and its caller is disconnected", "err", err)
			return
		}
		err := error(failure{name: ofService + "PermissionDenied"})
		send := func(r reply, file *os.File) error { return write(c, q, r, file) }
		if mine {
			err = d.answer(ctx, q, send)
		}
		if err != nil {
			d.log.Info("storage provider: a call has failed", "method", q.Method, "err", err)
			err = send(asReply(err), nil)
		}
		if err != nil {
			return
		}
	}
}

// allowed says whether a caller is root, or the user of this process.
func allowed(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	if bad := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); bad != nil || err != nil {
		return false
	}
	return peer.Uid == 0 || int(peer.Uid) == os.Getuid()
}

// messages splits a stream at the bytes that end messages. Text without an end is not a message.
func messages(data []byte, _ bool) (advance int, token []byte, err error) {
	if end := bytes.IndexByte(data, 0); end >= 0 {
		return end + 1, data[:end], nil
	}
	return 0, nil, nil
}

// write writes an answer, unless the caller wants none. After an error the connection is closed: part of the answer may
// have been sent.
func write(c *net.UnixConn, q call, r reply, file *os.File) (err error) {
	if q.Oneway {
		return nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write answer: %w", err), c.Close())
		}
	}()
	if r.Parameters == nil {
		r.Parameters = map[string]any{}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	text = append(text, 0)
	sent := 0
	if file != nil {
		// The descriptor belongs to the first byte.
		if sent, _, err = c.WriteMsgUnix(text, unix.UnixRights(int(file.Fd())), nil); err != nil {
			return err
		}
	}
	_, err = c.Write(text[sent:])
	return err
}
