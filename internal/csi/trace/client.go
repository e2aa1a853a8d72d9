package trace

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// maxLine is the size limit of one call in an answer, in bytes.
const maxLine = 1 << 20

// ErrNoProcess says that no process answers at the socket.
var ErrNoProcess = errors.New("no volplane process that calls drivers answers")

// Client connects to the process behind a socket.
type Client struct{ Socket string }

// do makes a request, and returns the body of a successful answer.
func (c Client) do(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	var text io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://volplane"+path, text)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.Socket)
		},
	}}
	answer, err := client.Do(r)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s: start 'volplane up' or 'volplane node' on this host, or name its data directory "+
			"with --data-dir", ErrNoProcess, c.Socket)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the socket %s is not for this user: become root", c.Socket)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		// The wrapped error would be mistaken for one of the API server.
		return nil, fmt.Errorf("ask the process at %s: %s", c.Socket, err.Error())
	case answer.StatusCode == http.StatusOK:
		return answer.Body, nil
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, maxText))
	if err != nil {
		return nil, fmt.Errorf("ask the process at %s: %w", c.Socket, err)
	}
	return nil, errors.New(strings.TrimSpace(string(said)))
}

// Calls calls f for each call to a driver that the process remembers, and with follow also for those that it makes
// until ctx ends.
func (c Client) Calls(ctx context.Context, driver string, follow bool, f func(Entry) error) error {
	path := "/calls/" + driver
	if follow {
		path += "?follow"
	}
	body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read a call: %w", err)
		}
		if err := f(e); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was followed until now
	}
	return lines.Err()
}

// Faults returns the planted faults of all drivers.
func (c Client) Faults(ctx context.Context) ([]Planted, error) {
	body, err := c.do(ctx, http.MethodGet, "/faults", nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var out []Planted
	if err := json.NewDecoder(io.LimitReader(body, maxLine)).Decode(&out); err != nil {
		return nil, fmt.Errorf("read planted faults: %w", err)
	}
	return out, nil
}

// Plant replaces the faults of a driver for some time; "" clears them.
func (c Client) Plant(ctx context.Context, driver, faults string, life time.Duration) error {
	body, err := c.do(ctx, http.MethodPut, "/faults/"+driver, plantRequest{faults, life.Seconds()})
	if err != nil {
		return err
	}
	return body.Close()
}
