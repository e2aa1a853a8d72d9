package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/test/internal/plane"
)

const arch = runtime.GOARCH

// Service is the address of the API server in the containers: the first one of --service-cluster-ip-range.
const Service = "10.96.0.1"

// Pause is the image that holds a Pod's namespaces. The node has it.
const Pause = "example.com/pause:1"

// Options configure a node.
type Options struct {
	// Dir is an absolute path of a directory for this node alone, short enough for the names of sockets.
	Dir string
	// Name is the Node's name, Kubeconfig the file with its identity, and Server the API server's address on this host.
	Name, Kubeconfig, Server string
}

// Node is a node that runs.
type Node struct {
	dir       string
	first     *exec.Cmd
	input     io.Closer
	listeners []net.Listener
}

// Start starts a node. The API server is reachable from it, and nothing else is.
func Start(ctx context.Context, o Options) (*Node, error) {
	n := &Node{dir: o.Dir}
	if err := n.start(ctx, o); err != nil {
		return nil, errors.Join(err, errors.New(n.Said()), n.End())
	}
	return n, nil
}

func (n *Node) start(ctx context.Context, o Options) error {
	// These names are unique among all nodes, and none is a substring of another.
	group := fmt.Sprintf("volplane-node-%d.", os.Getpid())
	for name, text := range map[string]string{
		"containerd.toml": fmt.Sprintf(containerdConfiguration, o.Dir), "cni/bridge.conflist": network,
		"kubelet.yaml": fmt.Sprintf(kubeletConfiguration, o.Dir, group),
	} {
		at := filepath.Join(o.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600)); err != nil {
			return err
		}
	}
	log, err := os.Create(filepath.Join(o.Dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	n.first = exec.Command("sh", "-euc", script, "node", o.Dir, Service, group, o.Kubeconfig, plane.Bin("kubelet"),
		"--config="+filepath.Join(o.Dir, "kubelet.yaml"), "--kubeconfig="+o.Kubeconfig, "--root-dir=/var/lib/kubelet",
		"--hostname-override="+o.Name, "--node-ip=10.88.0.2", "--cert-dir="+filepath.Join(o.Dir, "certs"))
	n.first.Dir, n.first.Stderr = "/", log
	n.first.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
	}
	if err := n.run(); err != nil {
		return err
	}
	if err := errors.Join(n.forward(o.Server, o.Server), n.forward(Service+":443", o.Server)); err != nil {
		return err
	}
	return n.Import(ctx, Image{
		Names: map[string][]string{Pause: {"/bin/sleep", "infinity"}},
		Files: map[string]string{"/bin/busybox": "/bin/busybox"}, Links: map[string]string{"/bin/sleep": "busybox"},
	})
}

// run starts the first process, and waits until the others run.
func (n *Node) run() error {
	input, err := n.first.StdinPipe()
	if err != nil {
		return err
	}
	n.input = input
	output, err := n.first.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.first.Start(); err != nil {
		return err
	}
	if said, err := bufio.NewReader(output).ReadString('\n'); said != "ready\n" {
		return fmt.Errorf("the node's first process says %q: %w", said, err)
	}
	return nil
}

// forward accepts connections at an address of the node and passes them on to one of the host.
func (n *Node) forward(address, to string) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.first.Process.Pid))
	if err != nil {
		return err
	}
	defer space.Close()
	var l net.Listener
	mount.OnThreadOfItsOwn(func() {
		if err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err == nil {
			l, err = net.Listen("tcp", address)
		}
	})
	if err != nil {
		return err
	}
	n.listeners = append(n.listeners, l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go join(c, to)
		}
	}()
	return nil
}

// join copies data between two connections.
func join(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		_, _ = io.Copy(s, c)
		_ = s.Close()
	}()
	_, _ = io.Copy(c, s)
}

// Import makes an image known.
func (n *Node) Import(ctx context.Context, i Image) error {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(i.write(w)) }()
	cmd := exec.CommandContext(ctx, "ctr", "--address", filepath.Join(n.dir, "containerd.sock"), "--namespace", "k8s.io",
		"--connect-timeout", "60s", "images", "import", "-")
	cmd.Stdin = r
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr images import: %w\n%s", err, said)
	}
	return nil
}

// Path returns the host's name of a path of the node.
func (n *Node) Path(at string) string { return fmt.Sprintf("/proc/%d/root%s", n.first.Process.Pid, at) }

// Said returns what the programs and all containers have said.
func (n *Node) Said() string {
	var out strings.Builder
	logs := n.Path("/var/log/pods")
	_ = filepath.WalkDir(logs, func(at string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			text, failed := os.ReadFile(at)
			fmt.Fprintf(&out, "%s %v:\n%s\n", strings.TrimPrefix(at, logs), failed, text)
		}
		return nil
	})
	text, err := os.ReadFile(filepath.Join(n.dir, "log"))
	fmt.Fprintf(&out, "the node %v:\n%s", err, text)
	return out.String()
}

// End stops the node with everything that runs there. It may be repeated.
func (n *Node) End() error {
	for _, l := range n.listeners {
		_ = l.Close()
	}
	n.listeners = nil
	if n.input == nil {
		return nil
	}
	_ = n.input.Close()
	n.input = nil
	return n.first.Wait()
}
