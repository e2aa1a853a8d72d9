package external_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/standalonetest"
)

func TestMain(m *testing.M) { standalonetest.Main(m) }

const (
	// soon is how long a request may take when its store has no quorum.
	soon = 5 * time.Second
	// patience is longer than anything that the tests wait for.
	patience = time.Minute
)

func open(t *testing.T, o external.Options) *external.Store {
	t.Helper()
	s, err := external.Open(t.Context(), o, func(string) {}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// eventually waits until what it repeats returns "".
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	last, tick := wrong(), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); last != ""; last = wrong() {
		select {
		case <-end:
			t.Fatal(last)
		case <-tick.C:
		}
	}
}

// TestRefusedCertificates: a start does not wait for a store that rejects this client, or has a different identity.
func TestRefusedCertificates(t *testing.T) {
	t.Parallel()
	m, dir := standalonetest.StartMembers(t, 1), t.TempDir()
	open(t, m.Options) // a store exists
	other, err := pki.Open(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := other.Client("volplane")
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(dir, "other.crt"), filepath.Join(dir, "other.key")
	standalonetest.WriteLeaf(t, cert, key, leaf)
	for name, c := range map[string]struct {
		change func(*external.Options)
		says   string
	}{
		"another authority": {
			func(o *external.Options) { o.CAFile = filepath.Join(dir, "other", "ca.crt") },
			"--etcd-cafile must be the authority",
		},
		"a client of another authority": {
			func(o *external.Options) { o.CertFile, o.KeyFile = cert, key },
			"does not accept the certificate of this client",
		},
		"no certificate": {
			func(o *external.Options) { o.CertFile, o.KeyFile = "", "" },
			"does not accept the certificate of this client",
		},
		"another name": {func(o *external.Options) {
			o.Servers = []string{strings.Replace(o.Servers[0], "127.0.0.1", "localhost", 1)}
		}, "an address of --etcd-servers that its certificate has"},
		"no file":      {func(o *external.Options) { o.CAFile = filepath.Join(dir, "nothing") }, "--etcd-cafile: open"},
		"no authority": {func(o *external.Options) { o.CAFile = key }, "has no certificate"},
		"a key of another certificate": {
			func(o *external.Options) { o.KeyFile = key },
			"--etcd-certfile and --etcd-keyfile: tls: private key does not match",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := m.Options
			c.change(&o)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s, err := external.Open(ctx, o, func(string) {}, nil)
			if err == nil {
				s.Stop()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) || ctx.Err() != nil {
				t.Errorf("%v; want %q", err, c.says)
			}
		})
	}
}

// TestWaits: a store that is not there yet is waited for, with a word, until the context ends.
func TestWaits(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 1)
	m.Member(0).Kill()
	ctx, cancel := context.WithCancel(t.Context())
	var words []string
	_, err := external.Open(ctx, m.Options, func(what string) {
		words = append(words, what)
		cancel()
	}, nil)
	if !errors.Is(err, context.Canceled) || len(words) != 1 ||
		!strings.HasPrefix(words[0], "waiting for the store: 0 of 1 members answer; "+m.Options.Servers[0]+" does not: ") {
		t.Errorf("%v, %q", err, words)
	}
	var once sync.Once
	s, err := external.Open(t.Context(), m.Options, func(string) { once.Do(m.Member(0).Start) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
}

// TestIdentity: the owner of the keys is known before anything is written.
func TestIdentity(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 1)
	s, ctx, ours, theirs := open(t, m.Options), t.Context(), []byte("ours"), []byte("theirs")
	if err := s.Recognize(ctx, ours); !errors.Is(err, external.ErrEmpty) {
		t.Error("an empty prefix:", err)
	}
	if err := s.Claim(ctx, ours); err != nil {
		t.Fatal(err)
	}
	if err := s.Recognize(ctx, ours); err != nil {
		t.Error("its own prefix:", err)
	}
	if err := s.Recognize(ctx, theirs); !errors.Is(err, external.ErrAnother) ||
		!strings.Contains(err.Error(), "choose another --etcd-prefix") {
		t.Error("that of another one:", err)
	}
	if err := s.Claim(ctx, theirs); !errors.Is(err, external.ErrInUse) {
		t.Error("who is later by a moment:", err)
	}
	for value, want := range map[string]error{
		`{"format":2,"ca":"x"}`: external.ErrNewer, `{}`: external.ErrInUse, "what is this": external.ErrInUse,
	} {
		if _, err := s.Client().Put(ctx, "/volplane/here/.volplane/identity", value); err != nil {
			t.Fatal(err)
		}
		if err := s.Recognize(ctx, ours); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", value, err, want)
		}
	}
	other := m.Options
	other.Prefix = "/kubernetes"
	if _, err := s.Client().Put(ctx, "/kubernetes/pods/default/x", "a Pod"); err != nil {
		t.Fatal(err)
	}
	if err := open(t, other).Recognize(ctx, ours); !errors.Is(err, external.ErrInUse) {
		t.Error("a prefix with other keys:", err)
	}
}

// TestAuthentication: an operation that an etcd with authentication does not permit is reported with the remedy.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 1)
	s, ctx := open(t, m.Options), t.Context()
	config, err := transport.TLSInfo{
		CertFile: m.Options.CertFile, KeyFile: m.Options.KeyFile, TrustedCAFile: m.Options.CAFile,
	}.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	root, err := clientv3.New(clientv3.Config{Endpoints: m.Options.Servers, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, one := root.UserAdd(ctx, "root", "root")
	_, two := root.RoleAdd(ctx, "root")
	_, three := root.UserGrantRole(ctx, "root", "root")
	_, four := root.AuthEnable(ctx)
	if err := errors.Join(one, two, three, four); err != nil {
		t.Fatal(err)
	}
	const says = "if etcd has authentication, the user who is the common name of --etcd-certfile needs a role"
	if err := s.Recognize(ctx, []byte("ours")); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%v; want %q", err, says)
	}
	if err := open(t, m.Options).Recognize(ctx, []byte("ours")); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("a later start: %v; want %q", err, says)
	}
}

// put writes a key and returns how long that took.
func put(s *external.Store, key string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	_, err := s.Client().Put(ctx, "/volplane/here/"+key, key)
	return time.Since(begin), err
}

// works waits until a key can be written.
func works(t *testing.T, s *external.Store, key string) {
	t.Helper()
	eventually(t, func() string {
		if _, err := put(s, key); err != nil {
			return fmt.Sprintf("%s: %v", key, err)
		}
		return ""
	})
}

// TestLossOfQuorum kills and freezes members of three: the store works without one, and without two every request ends
// soon, with an explanation. When they are back, confirmed writes exist and refused ones do not.
func TestLossOfQuorum(t *testing.T) {
	m := standalonetest.StartMembers(t, 3)
	s := open(t, m.Options)
	works(t, s, "three")
	m.Member(0).Freeze()
	works(t, s, "one is frozen")
	// Its share of requests is sent to the others.
	eventually(t, func() string {
		for range 6 {
			if took, err := put(s, "again"); err != nil || took > time.Second {
				return fmt.Sprintf("a write took %s: %v", took, err)
			}
		}
		return ""
	})
	m.Member(0).Thaw()
	m.Member(0).Kill()
	works(t, s, "one is dead")
	m.Member(1).Kill()
	endsSoon(t, s)
	refuses(t, s)
	m.Member(0).Start()
	works(t, s, "two are back")
	for key, want := range map[string]int{"three": 1, "one is frozen": 1, "one is dead": 1, "refused": 0} {
		r, err := s.Client().Get(t.Context(), "/volplane/here/"+key)
		if err != nil || len(r.Kvs) != want {
			t.Errorf("%s: %v, %v; want %d", key, r, err, want)
		}
	}
	if d := s.Describe(t.Context()); len(d.Members) != 3 || d.Members[1].Problem == "" || d.Members[2].Version == "" {
		t.Errorf("%+v", d)
	}
}

// noQuorum is the error of every request when two of three members are dead.
const noQuorum = "the store has no quorum: 1 of 3 members answers"

// endsSoon waits for a write that was under way when the quorum was lost. A request in flight to a member that dies
// fails immediately, with the connection's error.
func endsSoon(t *testing.T, s *external.Store) {
	t.Helper()
	eventually(t, func() string {
		took, err := put(s, "in flight")
		if err == nil || took > soon {
			t.Errorf("a write in flight: %v after %s", err, took)
		}
		if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), noQuorum) {
			return fmt.Sprint("a write in flight: ", err)
		}
		return ""
	})
}

// refuses requires that later requests are refused before they are sent.
func refuses(t *testing.T, s *external.Store) {
	t.Helper()
	took, err := put(s, "refused")
	if took > time.Second || !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), noQuorum) {
		t.Errorf("a write: %v after %s", err, took)
	}
	if _, err := s.Client().Get(t.Context(), "/volplane/here/three"); !apierrors.IsServiceUnavailable(err) {
		t.Error("a read:", err)
	}
	if r, p := s.Room(); r.Answer != 1 || r.All != 3 || !p.RefuseAll {
		t.Errorf("%+v, %+v", r, p)
	}
}

// TestStoreIsReplaced: a store that was replaced by an empty one is given up before anything is read from it.
func TestStoreIsReplaced(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 1)
	s, record := open(t, m.Options), filepath.Join(t.TempDir(), "reached")
	if err := errors.Join(s.Claim(t.Context(), []byte("ours")), s.Begin(t.Context(), record)); err != nil {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	m.Member(0).Kill()
	m.Member(0).Wipe()
	eventually(t, func() string {
		if _, plan := s.Room(); !plan.RefuseAll {
			return "the loss of the quorum is not noticed"
		}
		return ""
	})
	m.Member(0).Start()
	select {
	case err := <-s.Err():
		if !errors.Is(err, external.ErrReplaced) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the store was replaced, and is still used")
	}
	if _, err := s.Client().Get(t.Context(), "/volplane/here/pods"); !apierrors.IsServiceUnavailable(err) {
		t.Error("the other store is read:", err)
	}
	s.Stop()
	if now, err := os.ReadFile(record); err != nil || string(now) != string(recorded) {
		t.Errorf("the record of the former store is now %s, %v; want %s", now, err, recorded)
	}
}

// TestNested: the keys of one control plane cannot be below those of another one.
func TestNested(t *testing.T) {
	t.Parallel()
	m := standalonetest.StartMembers(t, 1)
	above := m.Options
	if err := open(t, above).Claim(t.Context(), []byte("ours")); err != nil {
		t.Fatal(err)
	}
	below := above
	below.Prefix += "/more/levels"
	err := open(t, below).Recognize(t.Context(), []byte("theirs"))
	if !errors.Is(err, external.ErrInUse) || !strings.Contains(err.Error(), "is below "+above.Prefix+",") {
		t.Error(err)
	}
}

// many is more keys than a page has.
const many = 250

// write writes a key.
func write(t *testing.T, s *external.Store, key, value string, options ...clientv3.OpOption) {
	t.Helper()
	if _, err := s.Client().Put(t.Context(), key, value, options...); err != nil {
		t.Fatal(err)
	}
}

// filled returns a store with the keys of a control plane and one of a neighbour's.
func filled(t *testing.T, o external.Options, ca []byte) *external.Store {
	t.Helper()
	s := open(t, o)
	if err := s.Claim(t.Context(), ca); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		write(t, s, fmt.Sprintf("/volplane/here/pods/default/p%03d", i), strings.Repeat("x", i*64))
	}
	write(t, s, "/volplane/here2/pods/default/p", "a neighbour's")
	lease, err := s.Client().Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, "/volplane/here/events/default/e", "an event", clientv3.WithLease(lease.ID))
	return s
}

// TestCopy: a copy has all keys of the prefix and no others, which is proved by reading both.
func TestCopy(t *testing.T) {
	t.Parallel()
	m, ctx, ca := standalonetest.StartMembers(t, 1), t.Context(), []byte("ours")
	from := filled(t, m.Options, ca)
	o := m.Options
	o.Prefix = "/volplane/there"
	to := open(t, o)
	sum, err := to.Fill(ctx, from.Keys(), ca)
	if err != nil || sum.Keys != many { // events do not count
		t.Fatal(sum, err)
	}
	if want, err := from.Keys().Sum(ctx); err != nil || want != sum {
		t.Errorf("%+v, want %+v, %v", sum, want, err)
	}
	r, err := from.Client().Get(ctx, "/volplane/there/events/default/e")
	if err != nil || len(r.Kvs) != 1 || r.Kvs[0].Lease == 0 {
		t.Errorf("an event would stay for ever: %v, %v", r, err)
	}
	if err := to.Recognize(ctx, ca); err != nil {
		t.Error(err)
	}
	if again, err := to.Fill(ctx, from.Keys(), ca); err != nil || again != sum {
		t.Errorf("the copy is repeated: %+v, %v; want %+v", again, err, sum)
	}
	write(t, to, "/volplane/there/pods/default/more", "another object")
	if _, err := to.Fill(ctx, from.Keys(), ca); !errors.Is(err, external.ErrInUse) {
		t.Error("a prefix with other objects:", err)
	}
	copyWhileWritten(t, from)
}

// TestHalfACopy: no control plane starts with an unfinished copy, and the copy can be repeated.
func TestHalfACopy(t *testing.T) {
	t.Parallel()
	m, ctx, ca := standalonetest.StartMembers(t, 1), t.Context(), []byte("ours")
	from := filled(t, m.Options, ca)
	o := m.Options
	o.Prefix = "/volplane/half"
	half := open(t, o)
	write(t, from, "/volplane/here/secrets/default/s", "k8s:enc:kms:v2:x:y")
	if _, err := half.Fill(ctx, from.Keys(), ca); !errors.Is(err, external.ErrBound) {
		t.Error("a value that no other key can have:", err)
	}
	if err := half.Recognize(ctx, ca); err == nil || !strings.Contains(err.Error(), "run it again") {
		t.Error("a control plane would start with half of a copy:", err)
	}
	write(t, from, "/volplane/here/secrets/default/s", "k8s:enc:secretbox:v1:x:y")
	write(t, from, "/volplane/half/pods/default/stale", "of the copy that did not end")
	if again, err := half.Fill(ctx, from.Keys(), ca); err != nil || again.Keys != many+1 {
		t.Error("the copy is repeated:", again, err)
	}
}

// copyWhileWritten copies keys while they are changed: the copy is that of one revision.
func copyWhileWritten(t *testing.T, from *external.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var writes sync.WaitGroup
	writes.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = from.Client().Put(ctx, "/volplane/here/pods/default/p000", fmt.Sprint(i))
		}
	})
	keys := from.Keys()
	if _, err := keys.Copy(t.Context(), external.Keys{Client: keys.Client, Prefix: "/volplane/busy"}); err != nil {
		t.Error("a busy store:", err)
	}
	cancel()
	writes.Wait()
}

// TestRecord: a data directory says where its objects are.
func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := external.Options{Servers: []string{"http://127.0.0.1:2379"}, Prefix: "/volplane/here"}
	for _, o := range []external.Options{{}, want, {}} {
		if err := external.Record(dir, o); err != nil {
			t.Fatal(err)
		}
		if got, err := external.Recorded(dir); err != nil || fmt.Sprint(got) != fmt.Sprint(o) {
			t.Errorf("%+v, %v; want %+v", got, err, o)
		}
	}
	path := filepath.Join(dir, "store.json")
	if err := os.WriteFile(path, []byte(`{"servers":["http://10.0.0.1:1"],"prefix":"/x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := external.Recorded(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Error("a key that was never written there:", err)
	}
}
