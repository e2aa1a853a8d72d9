package seal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"volplane.dev/volplane/standalone/apiserver/seal"
	"volplane.dev/volplane/standalone/etcd"
)

const (
	prefix   = "/registry"
	sentinel = "SENTINEL-0123456789"
	// many is more than one page.
	many = 450
)

// host is a data directory with its etcd.
type host struct {
	t    *testing.T
	dir  string
	etcd *etcd.Server
}

func newHost(t *testing.T) *host {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "seal-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir}
	if err := os.Mkdir(h.pki(), 0o700); err != nil {
		t.Fatal(err)
	}
	h.start()
	t.Cleanup(func() { h.etcd.Stop(); _ = os.RemoveAll(dir) })
	return h
}

func (h *host) pki() string  { return filepath.Join(h.dir, "pki") }
func (h *host) mark() string { return filepath.Join(h.pki(), "encryption.under-way") }

func (h *host) start() {
	h.t.Helper()
	var err error
	if h.etcd, err = etcd.Start(h.t.Context(), etcd.Options{Dir: filepath.Join(h.dir, "etcd"), NoSync: true}); err != nil {
		h.t.Fatal(err)
	}
}

// file writes a file next to the data directory's own ones.
func (h *host) file(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// fill writes Secrets in clear.
func (h *host) fill(n int) {
	h.t.Helper()
	c := h.etcd.Client()
	defer c.Close()
	for i := range n {
		if _, err := c.Put(h.t.Context(), fmt.Sprintf("%s/secrets/ns/s%04d", prefix, i),
			fmt.Sprintf("k8s\x00 %s %d", sentinel, i)); err != nil {
			h.t.Fatal(err)
		}
	}
	// Neighbouring keys must be ignored.
	if _, err := c.Put(h.t.Context(), prefix+"/secretsandmore/ns/x", "k8s:enc:other:v1:k:x"); err != nil {
		h.t.Fatal(err)
	}
}

// seal runs with a limited number of writes; a negative number means no limit.
func (h *host) seal(o seal.Options, writes int) (int, error) {
	h.t.Helper()
	c := h.etcd.Client()
	defer c.Close()
	k := &counting{KV: c.KV, left: writes}
	o.Etcd, o.Prefix, o.Defragment, o.Dir = k, prefix, h.etcd.Defragment, h.pki()
	_, err := seal.Secrets(h.t.Context(), o)
	return k.done, err
}

// stored returns how many Secrets are stored in clear, and under each key.
func (h *host) stored() map[string]int {
	h.t.Helper()
	c := h.etcd.Client()
	defer c.Close()
	r, err := c.Get(h.t.Context(), prefix+"/secrets/", clientv3.WithPrefix())
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]int{}
	for _, kv := range r.Kvs {
		how := "clear"
		if parts := strings.SplitN(string(kv.Value), ":", 6); len(parts) == 6 && parts[0] == "k8s" {
			how = parts[2] + " " + strings.SplitN(parts[4], "-", 2)[0]
		}
		all[how]++
	}
	return all
}

// raw returns what is in the data base's file.
func (h *host) raw() []byte {
	h.t.Helper()
	h.etcd.Stop()
	data, err := os.ReadFile(filepath.Join(h.dir, "etcd", "member", "member", "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = os.ReadFile(filepath.Join(h.dir, "etcd", "member", "snap", "db"))
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.start()
	return data
}

var errCut = errors.New("cut")

// counting lets so many writes through.
type counting struct {
	clientv3.KV
	left, done int
}

func (c *counting) Txn(ctx context.Context) clientv3.Txn {
	if c.left == 0 {
		return cut{}
	}
	c.left--
	c.done++
	return c.KV.Txn(ctx)
}

func (c *counting) Compact(
	ctx context.Context, rev int64, opts ...clientv3.CompactOption,
) (*clientv3.CompactResponse, error) {
	if c.left == 0 {
		return nil, errCut
	}
	c.left--
	c.done++
	return c.KV.Compact(ctx, rev, opts...)
}

type cut struct{}

func (c cut) If(...clientv3.Cmp) clientv3.Txn        { return c }
func (c cut) Then(...clientv3.Op) clientv3.Txn       { return c }
func (c cut) Else(...clientv3.Op) clientv3.Txn       { return c }
func (c cut) Commit() (*clientv3.TxnResponse, error) { return nil, errCut }

// TestWhatLiesInClear: it is encrypted in pages, wherever that is broken off, and
// the data base forgets how it was. When all is done nothing is written any more.
func TestWhatLiesInClear(t *testing.T) {
	h := newHost(t)
	h.fill(many)
	if !bytes.Contains(h.raw(), []byte(sentinel)) {
		t.Fatal("what is in clear is not seen: the test would see nothing")
	}
	for _, writes := range []int{0, 1, 250, many - 251, 0} {
		h.breakOff(writes)
	}
	if got := h.stored(); got["secretbox volplane"] != many {
		t.Errorf("%v", got)
	}
	// Only old revisions are left, which the database must drop.
	if n, err := h.seal(seal.Options{}, -1); err != nil || n != 1 {
		t.Fatalf("%d writes, %v, want the one that was not done", n, err)
	}
	if bytes.Contains(h.raw(), []byte(sentinel)) {
		t.Error("the data base still has what was in clear")
	}
	if n, err := h.seal(seal.Options{}, -1); err != nil || n != 0 {
		t.Errorf("nothing is in clear: %d writes, %v", n, err)
	}
	h.atRest()
}

// breakOff seals with so many writes.
func (h *host) breakOff(writes int) {
	h.t.Helper()
	if _, err := h.seal(seal.Options{}, writes); !errors.Is(err, errCut) {
		h.t.Fatalf("%d writes: %v, want it broken off", writes, err)
	}
	if _, err := os.Stat(h.mark()); err != nil {
		h.t.Errorf("broken off without a mark: %v", err)
	}
}

// atRest requires that only the key file is left, and that only its owner may read it.
func (h *host) atRest() {
	h.t.Helper()
	if _, err := os.Stat(h.mark()); !errors.Is(err, fs.ErrNotExist) {
		h.t.Errorf("mark: %v", err)
	}
	info, err := os.Stat(filepath.Join(h.pki(), "encryption.yaml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		h.t.Errorf("key: %v, %v", info, err)
	}
}

const own = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: own, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}
`

// TestKeyThatIsGone: the lost Secrets are named, and nothing is overwritten.
func TestKeyThatIsGone(t *testing.T) {
	h := newHost(t)
	h.fill(7)
	if _, err := h.seal(seal.Options{}, -1); err != nil {
		t.Fatal(err)
	}
	key, away := filepath.Join(h.pki(), "encryption.yaml"), filepath.Join(h.dir, "away")
	h.rename(key, away)
	ownFile := h.file("own.yaml", own)
	for what, o := range map[string]seal.Options{
		"its own key": {}, "a file without it": {File: ownFile}, "that is not to be deleted": {File: ownFile, Forget: true},
	} {
		h.refused(what, o, key)
	}
	h.rename(away, key)
	if n, err := h.seal(seal.Options{}, -1); err != nil || n != 0 {
		t.Fatalf("with its key: %d writes, %v", n, err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if n, err := h.seal(seal.Options{Forget: true}, -1); err != nil || n != 7 {
		t.Errorf("deleted on demand: %d writes, %v", n, err)
	}
	if got := h.stored(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func (h *host) rename(from, to string) {
	h.t.Helper()
	if err := os.Rename(from, to); err != nil {
		h.t.Fatal(err)
	}
}

// refused makes sure that nothing is done, and that the error has everything that the user needs.
func (h *host) refused(what string, o seal.Options, key string) {
	h.t.Helper()
	n, err := h.seal(o, -1)
	if !errors.Is(err, seal.ErrUnreadable) || n != 0 {
		h.t.Fatalf("%s: %d writes, %v", what, n, err)
	}
	for _, want := range []string{
		"7 Secrets", "ns/s0000", "2 more", "secretbox v1 volplane-", key, "Nothing was changed",
	} {
		if !strings.Contains(err.Error(), want) {
			h.t.Errorf("%s: %v, which does not say %q", what, err, want)
		}
	}
	if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
		h.t.Errorf("%s: another key is in its place: %v", what, err)
	}
}

// TestKeyOfOnesOwn: a user's configuration that also has the old key takes over everything.
func TestKeyOfOnesOwn(t *testing.T) {
	h := newHost(t)
	h.fill(3)
	if _, err := h.seal(seal.Options{}, -1); err != nil {
		t.Fatal(err)
	}
	volplanes, err := os.ReadFile(filepath.Join(h.pki(), "encryption.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, providers, _ := strings.Cut(string(volplanes), "providers:\n")
	providers, _, _ = strings.Cut(providers, "  resources:")
	both := h.file("both.yaml", own+strings.ReplaceAll(providers, "  - identity: {}\n", ""))
	if _, err := h.seal(seal.Options{File: both}, -1); err != nil {
		t.Fatalf("%v, by\n%s", err, own+providers)
	}
	if got := h.stored(); got["aescbc own"] != 3 {
		t.Errorf("%v", got)
	}
	if n, err := h.seal(seal.Options{File: h.file("own.yaml", own)}, -1); err != nil || n != 0 {
		t.Errorf("without the old key: %d writes, %v", n, err)
	}
	if _, err := h.seal(seal.Options{File: h.file("bad.yaml", "x")}, -1); err == nil ||
		!strings.Contains(err.Error(), "bad.yaml") {
		t.Errorf("a file that says nothing: %v", err)
	}
}
