package reports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// patience is how long a script waits for something.
const patience = time.Minute

// TestScripts plays each report in a namespace of its own, with a driver of its own, at one control plane.
func TestScripts(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, planetest.LooksOften)
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		planetest.UnmountBelow(t, p.Dir)
	})
	functions, err := filepath.Abs("../../situations/testdata/make.sh")
	if err != nil {
		t.Fatal(err)
	}
	w := &onePlane{t: t, plane: p, client: client, functions: functions}
	testscript.Run(t, testscript.Params{
		Dir: scripts, RequireExplicitExec: true, Setup: w.setup,
		Cmds: planetest.Commands{
			"until": planetest.Until, "sh": w.sh, "driver": tell, "called": called, "has": has,
		},
	})
}

// onePlane is the control plane at which all scripts are played.
type onePlane struct {
	t      *testing.T
	plane  *plane.Plane
	client kubernetes.Interface
	// functions is a file with functions that make objects.
	functions string
}

// driverKey is the key of the driver among the values of a script.
type driverKey struct{}

// setup gives a script a namespace $N, a driver $DRIVER with the class $CLASS and a class of snapshots of the same
// name, and the class late-$N, which waits for a Pod.
func (w *onePlane) setup(e *testscript.Env) error {
	name := strings.ToLower(strings.TrimPrefix(filepath.Base(e.WorkDir), "script-"))
	driver := csitest.Start(w.t, config(name+".example.com"))
	driver.Register(filepath.Join(w.plane.Dir, "node", "plugins_registry"))
	e.Values[driverKey{}] = driver
	for key, value := range map[string]string{
		"KUBECONFIG": w.plane.Kubeconfig(), "PATH": planetest.Path(e), "HOME": e.WorkDir, "N": name,
		"DRIVER": driver.Name(), "CLASS": "now-" + name, "DATA_DIR": w.plane.Dir,
	} {
		e.Setenv(key, value)
	}
	return w.make(name, driver.Name())
}

// config describes a driver with all capabilities, which mounts filesystems in memory.
func config(name string) csitest.Config {
	c := csitest.Full()
	c.Name, c.NodeID, c.Segments, c.Snapshots = name, "id-node1", nil, []string{"given"}
	c.Plugin.AccessibilityConstraints = false
	c.Controller.Snapshot, c.Controller.ListSnapshots = true, true
	c.Plugin.GroupController, c.Group.Snapshot = true, true
	c.Hooks = map[string]func(any) error{
		"NodePublishVolume": func(r any) error {
			target := r.(*csipb.NodePublishVolumeRequest).GetTargetPath()
			if err := os.MkdirAll(target, 0o700); err != nil {
				return err
			}
			return unix.Mount("reports", target, "tmpfs", 0, "size=1m")
		},
		"NodeUnpublishVolume": func(r any) error {
			target := r.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
			if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return os.Remove(target)
		},
	}
	return c
}

// sh is the command `sh LINE`: a command line with the built programs and the functions of make.sh.
func (w *onePlane) sh(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("bash", "-euo", "pipefail", "-c", ". "+w.functions+"\n"+strings.Join(args, " "))
	if (err != nil) != neg {
		ts.Fatalf("%v", err)
	}
}

// tell is the command `driver METHOD [after] CODE WORDS`: from now on the driver answers the method's calls with an
// error, `after` it has done the work. `hang` means a call that does not return, `empty` an answer without content,
// `ok` a driver without faults. `driver dies` and `driver returns` are about the process.
func tell(ts *testscript.TestScript, neg bool, args []string) {
	d := ts.Value(driverKey{}).(*csitest.Driver)
	switch {
	case neg || len(args) == 0:
		ts.Fatalf("usage: driver METHOD [after] CODE WORDS")
	case args[0] == "dies":
		d.Kill()
		return
	case args[0] == "returns":
		d.Restart()
		return
	}
	method, words := args[0], args[1:]
	if words[0] == "ok" {
		d.OnCall(method, nil)
		return
	}
	action := csitest.Action{After: words[0] == "after"}
	if action.After {
		words = words[1:]
	}
	switch words[0] {
	case "hang":
		action.Hang = true
	case "empty":
		action.Answer = map[string]proto.Message{"ControllerExpandVolume": &csipb.ControllerExpandVolumeResponse{}}[method]
	default:
		var code codes.Code
		ts.Check(code.UnmarshalJSON([]byte(strconv.Quote(words[0]))))
		action.Err = status.Error(code, strings.Join(words[1:], " "))
	}
	d.OnCall(method, func(int, any) csitest.Action { return action })
}

// called is the command `called METHOD [TIMES] [REGEXP]`: it waits until the driver has been called that often, or
// once, with a matching request. `! called` does not wait.
func called(ts *testscript.TestScript, neg bool, args []string) {
	d := ts.Value(driverKey{}).(*csitest.Driver)
	times, like := 1, ""
	for _, arg := range args[1:] {
		if n, err := strconv.Atoi(arg); err == nil {
			times = n
		} else {
			like = arg
		}
	}
	pattern := regexp.MustCompile(like)
	seen := func() string {
		calls := slices.DeleteFunc(d.Calls(), func(c csitest.Call) bool {
			return c.Method != args[0] || !pattern.MatchString(prototext.Format(c.Request))
		})
		if len(calls) < times {
			return fmt.Sprintf("%s was called %d times", strings.Join(args, " "), len(calls))
		}
		return ""
	}
	if neg {
		if seen() == "" {
			ts.Fatalf("the driver's %s was called", args[0])
		}
		return
	}
	wait(ts, seen)
}

// has is the command `has VOLUMES SNAPSHOTS`: it waits until the driver has that many, not counting the snapshot that
// it has from the start.
func has(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: has VOLUMES SNAPSHOTS")
	}
	d := ts.Value(driverKey{}).(*csitest.Driver)
	wait(ts, func() string {
		got := []string{strconv.Itoa(len(d.Volumes())), strconv.Itoa(len(d.Snapshots()) - 1)}
		if !slices.Equal(got, args) {
			return fmt.Sprintf("the driver has %v, want %v", got, args)
		}
		return ""
	})
}

func wait(ts *testscript.TestScript, notYet func() string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := testkit.Until(ctx, notYet); err != nil {
		ts.Fatalf("%v", err)
	}
}
