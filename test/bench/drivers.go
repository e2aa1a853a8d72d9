package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/test/internal/plane"
)

// hostedDriver is the word with which this program is a driver: of the name that follows, at the socket that its
// environment names.
const hostedDriver = "driver"

// hosted is a driver that a host runs. It has no volumes.
type hosted struct {
	driver
	csipb.UnimplementedNodeServer
	name string
}

func (h *hosted) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: h.name, VendorVersion: "1"}, nil
}

func (h *hosted) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{}, nil
}

func (h *hosted) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: os.Getenv(driverfile.VarNode)}, nil
}

// beHosted serves a driver until the process is killed.
func beHosted(name string) error {
	l, err := net.Listen("unix", strings.TrimPrefix(os.Getenv(driverfile.VarEndpoint), "unix://"))
	if err != nil {
		return err
	}
	h, s := &hosted{name: name}, grpc.NewServer()
	csipb.RegisterIdentityServer(s, h)
	csipb.RegisterControllerServer(s, h)
	csipb.RegisterNodeServer(s, h)
	return s.Serve(l)
}

// atRest is what a process uses while there are no requests.
type atRest struct {
	privateKiB int
	// cpu is in percent of a core.
	cpu float64
}

// measureRest lets a process settle, and watches it for an interval.
func measureRest(pid int) (atRest, error) {
	const settle, interval = 40 * time.Second, time.Minute
	time.Sleep(settle)
	before, err := readUsage(pid)
	if err != nil {
		return atRest{}, err
	}
	begin := time.Now()
	time.Sleep(interval)
	after, err := readUsage(pid)
	if err != nil {
		return atRest{}, err
	}
	private, err := privateMemory(pid)
	return atRest{private, 100 * (after.cpu - before.cpu).Seconds() / time.Since(begin).Seconds()}, err
}

// privateMemory returns the memory in KiB that a process shares with no other one.
func privateMemory(pid int) (int, error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	sum := 0
	for _, name := range []string{"Private_Clean", "Private_Dirty"} {
		kib, err := strconv.Atoi(strings.TrimSuffix(field(path, name), " kB"))
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		sum += kib
	}
	return sum, nil
}

// fleet is a plane on whose host drivers are run.
type fleet struct {
	*plane.Plane
	self string
	dir  driverfile.Dir
}

// measureDrivers adds drivers to a host, and compares its idle process with and without them: in one run, because a
// process takes more on a busy machine.
func measureDrivers(ctx context.Context, figures map[string]any, n int) (err error) {
	work, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	f := &fleet{}
	if f.self, err = os.Executable(); err != nil {
		return err
	}
	if f.Plane, err = plane.Start(ctx, filepath.Join(work, "data")); err != nil {
		return err
	}
	f.dir = driverfile.Dir(filepath.Join(f.Dir, "drivers.d"))
	defer func() {
		err = errors.Join(err, f.removeAll(ctx))
		f.Stop()
	}()
	without, err := measureRest(f.PID())
	if err != nil {
		return err
	}
	if err := f.add(ctx, figures, n); err != nil {
		return err
	}
	with, err := measureRest(f.PID())
	if err != nil {
		return err
	}
	figures["drivers"] = n
	figures["drivers_none_idle_cpu_percent_of_a_core"] = without.cpu
	figures["drivers_idle_cpu_percent_of_a_core"] = with.cpu
	figures["drivers_none_private_mib"] = float64(without.privateKiB) / 1024
	figures["drivers_private_mib"] = float64(with.privateKiB) / 1024
	figures["drivers_private_mib_each"] = float64(with.privateKiB-without.privateKiB) / 1024 / float64(n)
	return nil
}

// add adds drivers: the first ones by the command, one after the other, and the others together by their files.
func (f *fleet) add(ctx context.Context, figures map[string]any, n int) error {
	const byCommand = 10
	var alone, added []time.Duration
	for i := range min(n, byCommand) {
		took, err := f.startAlone(ctx, f.Dir+strconv.Itoa(i)+".sock")
		if err != nil {
			return err
		}
		alone = append(alone, took)
		begin := time.Now()
		name := driverOf(i)
		command := exec.CommandContext(ctx, plane.Bin("volplane"), "driver", "add", name, "--exec",
			fmt.Sprintf("'%s' %s %s", f.self, hostedDriver, name))
		command.Env = append(os.Environ(), "VOLPLANE_DATA_DIR="+f.Dir)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("driver add: %w: %s", err, out)
		}
		added = append(added, time.Since(begin))
	}
	begin := time.Now()
	for i := byCommand; i < n; i++ {
		if err := f.dir.Put(f.fileOf(driverOf(i))); err != nil {
			return err
		}
	}
	if err := f.registered(ctx, n); err != nil {
		return err
	}
	figures["driver_start_ms"], figures["driver_add_ms"] = milliseconds(median(alone)), milliseconds(median(added))
	figures["driver_add_beyond_start_ms"] = milliseconds(median(added) - median(alone))
	figures["drivers_registered_at_once_s"] = time.Since(begin).Seconds()
	return nil
}

func driverOf(i int) string { return fmt.Sprintf("d%d.bench.example.com", i) }

func (f *fleet) fileOf(name string) driverfile.Driver {
	return driverfile.Driver{
		APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: name,
		Processes: []driverfile.Process{{
			Roles: []driverfile.Role{driverfile.RoleController, driverfile.RoleNode},
			Exec:  []string{f.self, hostedDriver, name},
		}},
	}
}

// startAlone returns how long a driver takes from its start until it answers with its name.
func (f *fleet) startAlone(ctx context.Context, socket string) (time.Duration, error) {
	defer os.Remove(socket)
	c := exec.CommandContext(ctx, f.self, hostedDriver, "alone.bench.example.com")
	c.Env = append(os.Environ(), driverfile.VarEndpoint+"=unix://"+socket)
	begin := time.Now()
	if err := c.Start(); err != nil {
		return 0, err
	}
	d, err := csi.Dial(ctx, socket, csi.WithNameOnly())
	took := time.Since(begin)
	if err == nil {
		err = d.Close()
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	return took, err
}

// registered waits until so many drivers are registered.
func (f *fleet) registered(ctx context.Context, n int) error {
	client, err := f.Client()
	if err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		node, err := client.StorageV1().CSINodes().Get(ctx, "node1", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ours := 0
		for _, d := range node.Spec.Drivers {
			if strings.HasSuffix(d.Name, ".bench.example.com") {
				ours++
			}
		}
		return ours == n, nil
	})
}

// removeAll removes all drivers, and waits until their programs have ended.
func (f *fleet) removeAll(ctx context.Context) error {
	all, _ := f.dir.Read()
	for _, d := range all {
		if err := f.dir.Remove(d.Name); err != nil {
			return err
		}
	}
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		left, err := supervise.Names(filepath.Join(f.Dir, "node", "drivers"))
		return len(left) == 0, err
	})
}
