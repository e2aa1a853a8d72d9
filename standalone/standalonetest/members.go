package standalonetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc/grpclog"

	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/pki"
)

// memberVariable is the variable of the environment that makes a process a member of an etcd.
const memberVariable = "VOLPLANE_TEST_MEMBER"

// memberConfig is what a member needs to know.
type memberConfig struct {
	Name, Dir, Client, Peer, Cluster string
	CA, Cert, Key                    string
}

// Main runs the tests of a package that calls StartMembers: a member is a process of the same program.
func Main(m *testing.M) {
	if config := os.Getenv(memberVariable); config != "" {
		fmt.Fprintln(os.Stderr, serveMember(config))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveMember runs a member until it fails.
func serveMember(config string) error {
	var m memberConfig
	if err := json.Unmarshal([]byte(config), &m); err != nil {
		return fmt.Errorf("configuration of a member: %w", err)
	}
	at := func(address string) []url.URL {
		u, _ := url.Parse(address)
		return []url.URL{*u}
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster, c.UnsafeNoFsync = m.Name, m.Dir, m.Cluster, true
	c.ListenClientUrls, c.AdvertiseClientUrls = at(m.Client), at(m.Client)
	c.ListenPeerUrls, c.AdvertisePeerUrls = at(m.Peer), at(m.Peer)
	c.ClientTLSInfo = transport.TLSInfo{CertFile: m.Cert, KeyFile: m.Key, TrustedCAFile: m.CA, ClientCertAuth: true}
	c.LogLevel = "fatal" // it would log each member that a test ends, and gRPC each request of one
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	server, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start a member: %w", err)
	}
	return <-server.Err()
}

// Members are the processes of an etcd that requires client certificates.
type Members struct {
	// Options lead to it, with a prefix.
	Options external.Options
	// CA issues its certificates and those of its clients.
	CA  *pki.Authority
	all []*Member
}

// Member is one of the processes.
type Member struct {
	t       testing.TB
	config  memberConfig
	under   []string
	process *exec.Cmd
}

// Place is where a member runs; its zero value is this host, with free ports.
type Place struct {
	// Host is the address at which the member listens, with etcd's usual ports.
	Host string
	// Under is the beginning of the command that starts the member: a program that becomes it, such as nsenter with its
	// arguments.
	Under []string
}

func (p Place) addresses(t testing.TB) (client, peer string) {
	t.Helper()
	if p.Host == "" {
		return freeAddress(t), freeAddress(t)
	}
	return net.JoinHostPort(p.Host, "2379"), net.JoinHostPort(p.Host, "2380")
}

// StartMembers starts so many members on this host, which end with the test.
func StartMembers(t testing.TB, n int) *Members {
	t.Helper()
	return StartMembersAt(t, make([]Place, n)...)
}

// StartMembersAt starts a member at each place. They end with the test.
func StartMembersAt(t testing.TB, places ...Place) *Members {
	t.Helper()
	dir := Dir(t)
	m := &Members{}
	var err error
	if m.CA, err = pki.Open(filepath.Join(dir, "pki")); err != nil {
		t.Fatal(err)
	}
	names := []string{"127.0.0.1"}
	for _, p := range places {
		if p.Host != "" {
			names = append(names, p.Host)
		}
	}
	serving, err := m.CA.Server(names...)
	if err != nil {
		t.Fatal(err)
	}
	client, err := m.CA.Client("volplane")
	if err != nil {
		t.Fatal(err)
	}
	m.Options = external.Options{
		Prefix: "/volplane/here", CAFile: filepath.Join(dir, "pki", "ca.crt"),
		CertFile: filepath.Join(dir, "client.crt"), KeyFile: filepath.Join(dir, "client.key"),
	}
	WriteLeaf(t, m.Options.CertFile, m.Options.KeyFile, client)
	cert, key := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	WriteLeaf(t, cert, key, serving)
	var cluster []string
	for i, p := range places {
		client, peer := p.addresses(t)
		c := memberConfig{
			Name: fmt.Sprintf("m%d", i), Client: "https://" + client, Peer: "http://" + peer,
			CA: m.Options.CAFile, Cert: cert, Key: key,
		}
		c.Dir = filepath.Join(dir, c.Name)
		m.Options.Servers = append(m.Options.Servers, c.Client)
		cluster = append(cluster, c.Name+"="+c.Peer)
		m.all = append(m.all, &Member{t: t, config: c, under: p.Under})
	}
	for _, one := range m.all {
		one.config.Cluster = strings.Join(cluster, ",")
		one.Start()
		t.Cleanup(one.Kill)
	}
	return m
}

// client returns a client of the members.
func (m *Members) client(t testing.TB) *clientv3.Client {
	t.Helper()
	o := m.Options
	config, err := transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.CAFile}.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: o.Servers, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// DeleteKeys deletes all keys below the prefix, as a user does with etcdctl.
func (m *Members) DeleteKeys(t testing.TB) {
	t.Helper()
	client := m.client(t)
	defer client.Close()
	if _, err := client.Delete(t.Context(), m.Options.Prefix+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// Leader returns the member that leads.
func (m *Members) Leader(t testing.TB) *Member {
	t.Helper()
	client := m.client(t)
	defer client.Close()
	for i, server := range m.Options.Servers {
		if s, err := client.Status(t.Context(), server); err == nil && s.Leader == s.Header.MemberId {
			return m.all[i]
		}
	}
	t.Fatal("no member leads")
	return nil
}

// Member returns one of the members.
func (m *Members) Member(i int) *Member { return m.all[i] }

// Start starts the process.
func (m *Member) Start() {
	m.t.Helper()
	config, err := json.Marshal(m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	command := append(slices.Clone(m.under), program)
	m.process = exec.Command(command[0], command[1:]...)
	m.process.Env = append(os.Environ(), memberVariable+"="+string(config))
	m.process.Stderr = os.Stderr
	if err := m.process.Start(); err != nil {
		m.t.Fatal(err)
	}
}

// Kill ends the process without any warning.
func (m *Member) Kill() {
	_ = m.process.Process.Kill()
	_ = m.process.Wait()
}

// Wipe deletes what a member that does not run has stored.
func (m *Member) Wipe() {
	m.t.Helper()
	if err := os.RemoveAll(m.config.Dir); err != nil {
		m.t.Fatal(err)
	}
}

// Freeze stops the process: it keeps its connections but does not respond, until Thaw.
func (m *Member) Freeze() { _ = m.process.Process.Signal(syscall.SIGSTOP) }

// Thaw resumes the process.
func (m *Member) Thaw() { _ = m.process.Process.Signal(syscall.SIGCONT) }

// WriteLeaf writes a certificate and its key to files.
func WriteLeaf(t testing.TB, cert, key string, leaf pki.Leaf) {
	t.Helper()
	for path, data := range map[string][]byte{cert: leaf.Cert, key: leaf.Key} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// freeAddress returns an address of this host at which nothing listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
