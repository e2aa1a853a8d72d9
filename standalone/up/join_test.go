package up

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/standalonetest"
)

func TestMain(m *testing.M) { standalonetest.Main(m) }

// told collects logs and errors.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// first is a control plane that invites others.
type first struct {
	t       *testing.T
	dir     string
	members *standalonetest.Members
	server  *apiserver.Server
	told    *told
}

// startFirst starts a control plane over an etcd that others run. All logs of the test are collected.
func startFirst(t *testing.T, encryption string) *first {
	t.Helper()
	f := &first{t: t, dir: standalonetest.Dir(t), members: standalonetest.StartMembers(t, 1), told: &told{}}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(f.told, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { slog.SetDefault(before) })
	f.server = f.start(f.dir, f.members.Options, encryption)
	return f
}

func (f *first) start(dir string, store external.Options, encryption string) *apiserver.Server {
	f.t.Helper()
	s, err := f.tryStart(dir, store, encryption)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Stop)
	return s
}

func (f *first) tryStart(dir string, store external.Options, encryption string) (*apiserver.Server, error) {
	return apiserver.Start(f.t.Context(), apiserver.Options{
		DataDir: dir, Listen: "127.0.0.1:0", NoSync: true, External: store, Version: "v1", Log: slog.Default(),
		EncryptionConfig: encryption,
	})
}

// invite writes an invitation of a control plane to a file.
func (f *first) invite(name string) string {
	f.t.Helper()
	text, err := InviteControlPlane(f.t.Context(), f.dir, name, "", time.Minute)
	if err != nil {
		f.t.Fatal(err)
	}
	return write(f.t, "join.kubeconfig", text)
}

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// host returns the options of another host.
func (f *first) host(file string) Options {
	return Options{
		DataDir: filepath.Join(standalonetest.Dir(f.t), "data"), Listen: "127.0.0.1:0", Join: file, Store: f.members.Options,
		Out: io.Discard, Log: slog.Default(),
	}
}

// joins requires that a host joins under a name.
func (f *first) joins(o Options, name string) {
	f.t.Helper()
	if node, err := o.join(f.t.Context(), func(string) {}); err != nil || node != name {
		f.t.Errorf("node %q, %v, want %q", node, err, name)
	}
}

// refuses requires that a host does not join, and that the error contains words.
func (f *first) refuses(what string, o Options, words string) {
	f.t.Helper()
	node, err := o.join(f.t.Context(), func(string) {})
	if err == nil || !strings.Contains(err.Error(), words) {
		f.t.Errorf("%s: node %q, %v, want %q", what, node, err, words)
	}
	fmt.Fprintln(f.told, err)
	if _, err := os.Stat(filepath.Join(o.DataDir, pkiName, "ca.key")); err == nil && !strings.Contains(what, "authority") {
		f.t.Errorf("%s: there are keys", what)
	}
}

// same requires that a host has the keys, in files that only their owner may read, and nothing else.
func (f *first) same(o Options) {
	f.t.Helper()
	names, err := os.ReadDir(filepath.Join(f.dir, pkiName))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range names {
		there, err := os.ReadFile(filepath.Join(f.dir, pkiName, e.Name()))
		if err != nil {
			f.t.Fatal(err)
		}
		if here, err := os.ReadFile(filepath.Join(o.DataDir, pkiName, e.Name())); err != nil || !bytes.Equal(here, there) {
			f.t.Errorf("%s differs: %v", e.Name(), err)
		}
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, joiningName)); !os.IsNotExist(err) {
		f.t.Errorf("something is left: %v", err)
	}
	err = filepath.WalkDir(o.DataDir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			f.t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		f.t.Error(err)
	}
}

// keepsSecrets requires that no log or error contains a secret.
func (f *first) keepsSecrets(invitations ...string) {
	f.t.Helper()
	f.told.mu.Lock()
	said := f.told.text.String()
	f.told.mu.Unlock()
	if !strings.Contains(said, "has fetched the keys") {
		f.t.Errorf("the log does not say that keys were fetched: %s", said)
	}
	var secrets []string
	for _, name := range []string{"ca.key", "service-account.key"} {
		text, err := os.ReadFile(filepath.Join(f.dir, pkiName, name))
		if err != nil {
			f.t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		secrets = append(secrets, strings.Split(string(text), "\n")[1], string(block.Bytes),
			base64.StdEncoding.EncodeToString(text)[:60])
	}
	text, err := os.ReadFile(filepath.Join(f.dir, pkiName, "encryption.yaml"))
	if err != nil {
		f.t.Fatal(err)
	}
	_, key, _ := strings.Cut(string(text), "secret: ")
	secrets = append(secrets, strings.Fields(key)[0], base64.StdEncoding.EncodeToString(text)[:60])
	for _, file := range invitations {
		config, err := clientcmd.LoadFromFile(file)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, user := range config.AuthInfos {
			secrets = append(secrets, user.Token[strings.LastIndex(user.Token, "~")+1:])
		}
	}
	for i, secret := range secrets {
		if len(secret) < 20 || strings.Contains(said, secret) {
			f.t.Errorf("secret %d was shown, or is empty", i)
		}
	}
}

// TestJoin: a host gets the keys once with an invitation, no longer needs the file then, and serves the same objects
// beside the inviting control plane. Errors are detected before anything is installed, and can be corrected.
func TestJoin(t *testing.T) {
	f := startFirst(t, "")
	admin := standalonetest.Client(t, f.server, "")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"k": []byte("v")}}
	if _, err := admin.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	file := f.invite("two")
	o := f.host(file)
	wrong := o
	wrong.Store.Prefix = "/volplane/elsewhere"
	f.refuses("another prefix", wrong, `are below "/volplane/here"`)
	wrong = o
	wrong.EncryptionConfig = write(t, "config.yaml", []byte("x"))
	f.refuses("a configuration of its own", wrong, "omit --encryption-provider-config")
	wrong = o
	wrong.Node = "three"
	f.refuses("another name", wrong, "--name is three")
	wrong = o
	wrong.Store = external.Options{}
	f.refuses("no store", wrong, "--join needs --etcd-servers")
	f.joins(o, "two")
	f.same(o)
	f.refuses("another host with the same file", f.host(file), "has already been used")
	f.joins(o, "two")
	other := o
	other.Join = f.other()
	f.refuses("another authority", other, "has the keys of another control plane")

	empty := standalonetest.StartMembers(t, 1).Options
	if s, err := f.tryStart(o.DataDir, empty, ""); err == nil || !strings.Contains(err.Error(), "has had objects") {
		t.Errorf("it starts empty in another store: %v", err)
		s.Stop()
	}
	f.serves(o, func(c kubernetes.Interface) {
		got, err := c.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
		if err != nil || string(got.Data["k"]) != "v" {
			t.Errorf("%v, %v", got, err)
		}
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				_, err := admin.CoreV1().Nodes().Get(ctx, "two", metav1.GetOptions{})
				return err == nil, nil
			}); err != nil {
			t.Errorf("the first has no Node of the second: %v", err)
		}
	})
	gone := o
	gone.Join, gone.Store = filepath.Join(t.TempDir(), "none"), external.Options{}
	f.joins(gone, "")
	gone.DataDir = filepath.Join(t.TempDir(), "data")
	f.refuses("no file", gone, "volplane invite --control-plane NAME")
	if r, err := Revoke(t.Context(), f.dir, "two"); err != nil || !r.Used {
		t.Errorf("%+v, %v", r, err)
	}
	f.keepsSecrets(file)
}

// serves runs the control plane of a host until do returns, which receives the client of its administrator.
func (f *first) serves(o Options, do func(kubernetes.Interface)) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	out, in := io.Pipe()
	o.Out = in
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, o)
		_ = in.Close()
	}()
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), " is up ("); {
		continue
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if _, client, err := administrator(o.DataDir); err != nil {
		f.t.Error(err)
	} else {
		do(client)
	}
	cancel()
	if err := <-ended; err != nil {
		f.t.Error(err)
	}
}

// other returns an invitation of another control plane.
func (f *first) other() string {
	f.t.Helper()
	ca, err := pki.Open(f.t.TempDir())
	if err != nil {
		f.t.Fatal(err)
	}
	return f.with(f.invite("two"), func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = ca.CertPEM() })
}

// TestJoinInterrupted: a start that ends after any step, or in the middle of one, is repeated by the next.
func TestJoinInterrupted(t *testing.T) {
	f := startFirst(t, "")
	files := make([]string, len((&joining{}).steps()))
	for done := range files {
		files[done] = f.invite(fmt.Sprintf("host-%d", done))
		o := f.host(files[done])
		config, err := readInvitation(o.Join)
		if err != nil {
			t.Fatal(err)
		}
		hash, err := pki.HashOf(config.CAData)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
			t.Fatal(err)
		}
		j := &joining{config: config, authority: hash, dir: o.DataDir, store: o.Store, log: o.Log}
		for _, step := range j.steps()[:done+1] {
			if err := step(t.Context()); err != nil {
				t.Fatalf("%d: %v", done, err)
			}
		}
		// This is half of a file, which the next attempt must not mistake for a whole one.
		if _, err := os.Stat(j.fetched()); err == nil {
			if err := os.WriteFile(filepath.Join(j.fetched(), "ca.key"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			f.joins(o, fmt.Sprintf("host-%d", done))
			f.same(o)
		}
	}
	f.keepsSecrets(files...)
}

// with returns a changed copy of an invitation.
func (f *first) with(file string, change func(*clientcmdapi.Cluster)) string {
	f.t.Helper()
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, c := range config.Clusters {
		change(c)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		f.t.Fatal(err)
	}
	return write(f.t, "changed.kubeconfig", text)
}

// TestJoinRefuses: files and data directories that are refused.
func TestJoinRefuses(t *testing.T) {
	f := startFirst(t, "")
	right := f.invite("two")
	node, err := Invite(t.Context(), f.dir, "n1", "", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ file, says string }{
		"an invitation of a node": {write(t, "n", node), "invites node n1"},
		"the administrator":       {filepath.Join(f.dir, "admin.kubeconfig"), "is not an invitation"},
		"no kubeconfig":           {write(t, "n", []byte("{")), "--join"},
		"another control plane":   {f.other(), "the invitation is of another control plane"},
		"no authority": {
			f.with(right, func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = nil }), "does not say by which",
		},
		"an unverified server": {f.with(right, func(c *clientcmdapi.Cluster) {
			c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true
		}), "does not say by which"},
		"no TLS": {f.with(right, func(c *clientcmdapi.Cluster) {
			c.Server = "http" + strings.TrimPrefix(c.Server, "https")
		}), "does not say by which"},
	} {
		f.refuses(what, f.host(c.file), c.says)
	}
	o := f.host(right)
	if err := os.MkdirAll(filepath.Join(o.DataDir, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.refuses("an etcd of its own", o, "has objects of its own")
	o = f.host(right)
	if err := os.MkdirAll(filepath.Join(o.DataDir, "node", "journal", "v"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.refuses("a directory that was used", o, "node/journal/v exists")
	if r, err := Revoke(t.Context(), f.dir, "two"); err != nil || !r.ControlPlane || r.Used || r.Known {
		t.Fatalf("%+v, %v", r, err)
	}
	f.refuses("a revoked invitation", f.host(right), "was revoked")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ended, f.host(right)); err != nil {
		t.Errorf("an interrupted start: %v", err)
	}
}

// TestJoinWithProviderConfig: where the user says how Secrets are encrypted, the host needs the same file, and no key
// is sent.
func TestJoinWithProviderConfig(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	config, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
		"resources": []any{map[string]any{"resources": []string{"secrets"}, "providers": []any{
			map[string]any{"secretbox": map[string]any{"keys": []any{map[string]any{"name": "k", "secret": key}}}},
			map[string]any{"identity": map[string]any{}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, "config.yaml", config)
	f := startFirst(t, file)
	o := f.host(f.invite("two"))
	f.refuses("no file", o, "copy that file to this host")
	o.EncryptionConfig = write(t, "other.yaml", append(config, '\n'))
	f.refuses("another file", o, "is not the file of --encryption-provider-config")
	o.EncryptionConfig = write(t, "copy.yaml", config)
	f.joins(o, "two")
	f.same(o)
	if _, err := os.Stat(filepath.Join(o.DataDir, pkiName, "encryption.yaml")); !os.IsNotExist(err) {
		t.Errorf("there is a key of volplane's own: %v", err)
	}
	if strings.Contains(f.told.text.String(), key) {
		t.Error("the key was said")
	}
}
