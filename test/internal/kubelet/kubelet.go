package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/test/internal/plane"
)

// Options configure a kubelet.
type Options struct {
	// Dir is an absolute path of a directory for this kubelet alone, short
	// enough for the names of sockets.
	Dir string
	// Node is the Node's name, Kubeconfig the file with its identity.
	Node, Kubeconfig string
	// PluginDir is where its FlexVolume drivers are; empty means that it has none.
	PluginDir string
	// Tuning are further lines of its configuration.
	Tuning string
}

// Kubelet is a kubelet that runs.
type Kubelet struct {
	// Root is its own directory, and Log the file with its output.
	Root, Log string

	kill    func() error
	runtime *grpc.Server
	// alone is held while the kubelet runs.
	alone *os.File
}

// Start serves a container runtime and runs a kubelet, without a server and
// without control groups of Pods. Its directory exists when Start returns, and it does
// not outlive the process.
func Start(o Options) (*Kubelet, error) {
	k := &Kubelet{
		Root: filepath.Join(o.Dir, "kubelet"), Log: filepath.Join(o.Dir, "kubelet.log"),
		kill: func() error { return nil }, runtime: grpc.NewServer(),
	}
	if err := k.start(o); err != nil {
		return nil, errors.Join(err, k.End())
	}
	return k, nil
}

// wait waits until no other test has a kubelet on this host, which they would
// change for each other.
func (k *Kubelet) wait() error {
	var err error
	if k.alone, err = os.Open("/var/lib"); err != nil {
		return err
	}
	return unix.Flock(int(k.alone.Fd()), unix.LOCK_EX)
}

func (k *Kubelet) start(o Options) error {
	if err := k.wait(); err != nil {
		return err
	}
	logs, none := filepath.Join(o.Dir, "logs"), filepath.Join(o.Dir, "none")
	for _, dir := range []string{filepath.Join(k.Root, "plugins_registry"), logs, none} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if o.PluginDir == "" {
		o.PluginDir = none
	}
	socket, config := filepath.Join(o.Dir, "cri.sock"), filepath.Join(o.Dir, "kubelet.yaml")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	pretended := newContainers(k.Root, logs)
	cri.RegisterRuntimeServiceServer(k.runtime, pretended)
	cri.RegisterImageServiceServer(k.runtime, pretended)
	go func() { _ = k.runtime.Serve(l) }()
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, socket, logs, o.PluginDir, o.Tuning),
		0o600); err != nil {
		return err
	}
	log, err := os.Create(k.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("sh", "-c", guard, "guard", plane.Bin("kubelet"), "--config="+config, "--kubeconfig="+o.Kubeconfig,
		"--root-dir="+k.Root, "--hostname-override="+o.Node, "--cert-dir="+filepath.Join(o.Dir, "certs"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = none, log, log
	cmd.ExtraFiles = []*os.File{k.alone}
	k.kill, err = run(cmd)
	return err
}

// guard runs a kubelet until its input ends, which it does with this process, however
// that ends. Then it restores the kernel's settings that a kubelet changes, and removes
// the directories that a kubelet always creates, unless they existed before or are not
// empty. Other tests wait for that, since it holds the lock.
const guard = `
fixed="/var/lib/kubelet/device-plugins /var/lib/kubelet /var/log/containers"
for dir in $fixed; do [ -e $dir ] || made="$made $dir"; done
before=$(cd /proc/sys && grep . vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)
"$@" 3>&- </dev/null &
read -r end
kill -9 $!
wait $!
for dir in $made; do rm -f $dir/kubelet.sock $dir/kubelet_internal_checkpoint; rmdir $dir; done
echo "$before" | while IFS=: read -r name value; do echo "$value" >/proc/sys/$name || exit 1; done
`

// run starts a program, and returns a function that ends its input and waits for its end.
func run(cmd *exec.Cmd) (end func() error, err error) {
	// A signal of the terminal is for this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		return func() error { return nil }, err
	}
	if err := cmd.Start(); err != nil {
		return func() error { return nil }, err
	}
	return sync.OnceValue(func() error {
		_ = input.Close()
		return cmd.Wait()
	}), nil
}

// configuration leaves out settings for running containers, and those that depend on the free space of the machine.
const configuration = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
enableServer: false
readOnlyPort: 0
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%s
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
podLogsDir: %s
volumePluginDir: %s
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
%s
`

// End stops the kubelet and removes what it has left. It may be repeated.
func (k *Kubelet) End() error {
	all := []error{k.kill()}
	k.runtime.Stop()
	points, err := mount.Below(k.Root)
	all = append(all, err)
	for _, p := range slices.Backward(points) {
		all = append(all, mount.Detach(p.Path))
	}
	// Loop devices go when nothing of them is mounted.
	all = append(all, k.detach())
	_ = k.alone.Close()
	return errors.Join(all...)
}

// detach removes the loop devices of files in or next to the kubelet's directory.
func (k *Kubelet) detach() error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	all := []error{err}
	for _, f := range files {
		file, err := os.ReadFile(f)
		if image := strings.TrimSpace(string(file)); err == nil && strings.HasPrefix(image, filepath.Dir(k.Root)+"/") {
			all = append(all, mount.LoopDetach(image))
		}
	}
	return errors.Join(all...)
}
