package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/test/internal/plane"
)

// Options says whose kubelet it is.
type Options struct {
	// Dir is an absolute path of a directory for this kubelet alone, short
	// enough for the names of sockets.
	Dir string
	// Node is the Node's name, Kubeconfig the file with its identity.
	Node, Kubeconfig string
	// Tuning are further lines of its configuration.
	Tuning string
}

// Kubelet is a kubelet that runs.
type Kubelet struct {
	// Root is its own directory, Log the file of what it says.
	Root, Log string

	kill    func()
	runtime *grpc.Server
	// alone is held while the kubelet runs.
	alone *os.File
	// sysctls are files of the kernel's settings, with what was in them; made
	// are directories that were not there.
	sysctls map[string]string
	made    []string
}

// sysctls returns what a kubelet sets in the kernel.
func sysctls() []string {
	return []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}
}

// fixed returns the directories that a kubelet makes whatever it is told.
func fixed() []string {
	return []string{"/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/log/containers"}
}

// Start serves a container runtime and runs a kubelet, without a server and
// without control groups of Pods. Its directory is there when it returns, and it
// does not outlive the process.
func Start(o Options) (*Kubelet, error) {
	k := &Kubelet{
		Root: filepath.Join(o.Dir, "kubelet"), Log: filepath.Join(o.Dir, "kubelet.log"),
		kill: func() {}, runtime: grpc.NewServer(), sysctls: map[string]string{},
	}
	if err := k.remember(); err != nil {
		return nil, errors.Join(err, k.End())
	}
	if err := k.start(o); err != nil {
		return nil, errors.Join(err, k.End())
	}
	return k, nil
}

// remember waits until no other test has a kubelet on this host, which they would
// change for each other, and notes what this one will change.
func (k *Kubelet) remember() error {
	var err error
	if k.alone, err = os.Open("/var/lib"); err != nil {
		return err
	}
	if err := unix.Flock(int(k.alone.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	for _, name := range sysctls() {
		path := filepath.Join("/proc/sys", name)
		before, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		k.sysctls[path] = string(before)
	}
	for _, dir := range fixed() {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			k.made = append(k.made, dir)
		}
	}
	return nil
}

func (k *Kubelet) start(o Options) error {
	logs, none := filepath.Join(o.Dir, "logs"), filepath.Join(o.Dir, "none")
	for _, dir := range []string{filepath.Join(k.Root, "plugins_registry"), logs, none} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
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
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, socket, logs, none, o.Tuning), 0o600); err != nil {
		return err
	}
	log, err := os.Create(k.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(plane.Bin("kubelet"), "--config="+config, "--kubeconfig="+o.Kubeconfig, "--root-dir="+k.Root, "--hostname-override="+o.Node, "--cert-dir="+filepath.Join(o.Dir, "certs"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = none, log, log
	k.kill, err = run(cmd)
	return err
}

// run starts a program that is killed with this process, and returns what ends
// it and waits for its end.
func run(cmd *exec.Cmd) (kill func(), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		// The signal comes when the thread ends that started the program.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(ended)
	}()
	err = <-started
	return func() {
		if err == nil {
			_ = cmd.Process.Kill()
		}
		<-ended
	}, err
}

// configuration leaves out what has to do with running containers, and what
// depends on how much room there is on the machine.
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

// End ends the kubelet and takes away what it has left. It may be repeated.
func (k *Kubelet) End() error {
	k.kill()
	k.runtime.Stop()
	var all []error
	points, err := mount.Below(k.Root)
	all = append(all, err)
	for _, p := range slices.Backward(points) {
		all = append(all, mount.Detach(p.Path))
	}
	// Loop devices go when nothing of them is mounted.
	all = append(all, k.detach())
	for path, before := range k.sysctls {
		now, err := os.ReadFile(path)
		if err == nil && string(now) != before {
			err = os.WriteFile(path, []byte(strings.TrimSpace(before)), 0o600)
		}
		all = append(all, err)
	}
	for _, dir := range slices.Backward(k.made) {
		_ = os.Remove(filepath.Join(dir, "kubelet.sock"))
		_ = os.Remove(filepath.Join(dir, "kubelet_internal_checkpoint"))
		// What somebody else has put there stays.
		_ = os.Remove(dir)
	}
	_ = k.alone.Close()
	return errors.Join(all...)
}

// detach takes away the loop devices of files in the kubelet's directory, or
// beside it.
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
