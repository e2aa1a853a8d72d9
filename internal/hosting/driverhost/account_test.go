package driverhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// accounts issues a numbered token for each question.
type accounts struct {
	issued int
	valid  time.Duration
	fails  error
}

func (w *driverHost) identify(_ context.Context, ns, name string) (Identity, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &w.accounts
	if a.fails != nil {
		return Identity{}, a.fails
	}
	a.issued++
	return Identity{
		Host: "127.0.0.1", Port: "6771", CA: []byte("authority"), Token: fmt.Sprintf("token %d of %s/%s", a.issued, ns, name),
		Expires: time.Now().Add(a.valid),
	}, nil
}

// sees returns a file of the account as the driver's process sees it.
func (w *driverHost) sees(file string) string {
	w.t.Helper()
	pid := w.pids()[name]
	target, err := os.Readlink(w.place())
	if err != nil {
		return ""
	}
	of := strings.Replace(target, "thread-self", fmt.Sprint(pid), 1)
	data, err := os.ReadFile(filepath.Join(of, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	return string(data)
}

// TestServiceAccount: only the program itself finds the files of its account at the usual place; they are
// renewed, even for a program that was adopted, and are removed with the driver.
func TestServiceAccount(t *testing.T) {
	w := newDriverHost(t)
	w.accounts.valid = time.Hour
	p := w.process("all", controller, node)
	p.ServiceAccount = "storage/share"
	w.put(p)
	w.until("announced", w.announced)
	for file, want := range map[string]string{
		"token": "token 1 of storage/share", "namespace": "storage", "ca.crt": "authority",
	} {
		if got := w.sees(file); got != want {
			t.Errorf("%s: %q", file, got)
		}
		path := filepath.Join(w.root, "serviceaccounts", name, file)
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s: %v %v", path, st, err)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.pids()[name]))
	if err != nil {
		t.Fatal(err)
	}
	vars := strings.Split(string(environ), "\x00")
	if !slices.Contains(vars, "KUBERNETES_SERVICE_HOST=127.0.0.1") ||
		!slices.Contains(vars, "KUBERNETES_SERVICE_PORT=6771") {
		t.Errorf("%q", vars)
	}
	if there, err := os.ReadDir(w.place()); err == nil {
		t.Errorf("this process finds %v at the place", there)
	}
	before := w.pids()[name]
	w.end()
	w.accounts.valid = 2 * time.Second
	w.run()
	w.until("renewed", func() bool { return w.sees("token") >= "token 3" })
	if now := w.pids()[name]; before == 0 || now != before {
		t.Errorf("process %d was %d: it was started again", now, before)
	}
	// Without the account, its files are gone.
	p.ServiceAccount = ""
	w.put(p)
	w.until("the files are gone", func() bool {
		_, err := os.Stat(filepath.Join(w.root, "serviceaccounts", name))
		return errors.Is(err, fs.ErrNotExist)
	})
	w.until("started anew without", func() bool { now := w.pids()[name]; return now != 0 && now != before })
}

// TestNoServiceAccount: without an identity the program is not started, and what is missing is reported.
func TestNoServiceAccount(t *testing.T) {
	for _, c := range []struct {
		what, want string
		prepare    func(w *driverHost) error
	}{
		{"no such account", "service account storage/share of " + name + ": there is none", func(w *driverHost) error {
			w.accounts.fails = errors.New("there is none")
			return nil
		}},
		{"a Pod", "ROOT/run/sa already exists, as in a Pod of Kubernetes", func(w *driverHost) error {
			return os.MkdirAll(w.place(), 0o700)
		}},
		{
			"a host that has joined", "may ask for tokens of Pods only: run the program on the host of the control plane",
			func(w *driverHost) error {
				w.joined = true
				w.end()
				w.run()
				return nil
			},
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newDriverHost(t)
			if err := c.prepare(w); err != nil {
				t.Fatal(err)
			}
			p := w.process("all", controller, node)
			p.ServiceAccount = "storage/share"
			w.put(p)
			w.tells(c.want)
			if n := len(w.pids()); n > 0 {
				t.Errorf("%d programs run", n)
			}
		})
	}
}

// TestRenewal: a token is renewed while there is time to try again.
func TestRenewal(t *testing.T) {
	for valid, want := range map[time.Duration]time.Duration{
		time.Hour: 48 * time.Minute, time.Second: time.Second, -time.Hour: time.Second,
	} {
		if got := renewal(valid); got != want {
			t.Errorf("%s: %s, want %s", valid, got, want)
		}
	}
}
