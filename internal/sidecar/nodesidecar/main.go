package nodesidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/process/healthz"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

// Exit codes, which are upstream's.
const (
	exitOK     = 0
	exitError  = 1
	exitSyntax = 2
)

const (
	// maxProcessors is how many processors a program uses at the same time. The runtime keeps memory for each.
	maxProcessors = 1
	// garbagePercent is how much garbage there may be, as a share of what is in use.
	garbagePercent = 20
	// freePause is the pause between two looks at whether there is memory to give back.
	freePause = 2 * time.Second
	// enoughGarbage is how many bytes must have been allocated for that.
	enoughGarbage = 32 << 10
)

// Streams are the outputs of a program.
type Streams struct {
	Out, Err io.Writer
}

// Main runs the programs that a command line asks for, until ctx ends, and returns the exit code. Under the name of one
// of upstream's programs it has that program's flags; otherwise --controllers names the programs, whose flags begin
// with their names.
func Main(ctx context.Context, args []string, s Streams, version string) int {
	name := filepath.Base(args[0])
	nodes, without, err := parse(name, args[1:])
	var usage *sidecar.UsageError
	switch {
	case errors.Is(err, sidecar.ErrHelp):
		fmt.Fprint(s.Out, help(name))
		return exitOK
	case err != nil:
		fmt.Fprintln(s.Err, "error:", err)
		if errors.As(err, &usage) {
			return exitSyntax
		}
		return exitError
	case nodes[0].Version:
		fmt.Fprintln(s.Out, name, version)
		return exitOK
	case nodes[0].ProbeOnly:
		// A kubelet asked by this whether the driver is registered. Upstream's program says yes without looking, too.
		return exitOK
	}
	level, _ := sidecar.Levels(nodes[0].Verbosity)
	log := slog.New(sidecar.LogTo(nodes[0].LogFormat, s.Err, level))
	if len(without) > 0 {
		log.Warn("some flags have no effect", "flags", strings.Join(without, ", "))
	}
	if err := run(ctx, nodes, log); err != nil {
		log.Error("the program ends", "err", err)
		return exitError
	}
	return exitOK
}

// parse reads the arguments of a program of that name.
func parse(name string, args []string) ([]sidecar.Node, []string, error) {
	if r, found := sidecar.RoleOf(name); found {
		o, without, err := r.Parse(name, args, os.Getenv)
		return []sidecar.Node{{Role: r, Options: o}}, without, err
	}
	return sidecar.ParseNode(name, args, os.Getenv)
}

// help returns the help of a program of that name.
func help(name string) string {
	if r, found := sidecar.RoleOf(name); found {
		return r.Help(name)
	}
	return sidecar.Registrar.Help("node-driver-registrar") + sidecar.Liveness.Help("livenessprobe")
}

// freeMemory gives back what the answer to a kubelet has taken, until ctx ends. A kubelet asks a few times in a minute,
// so that the garbage collector would hardly ever run by itself. While nothing is allocated, it does nothing.
func freeMemory(ctx context.Context) error {
	tick := time.NewTicker(freePause)
	defer tick.Stop()
	var now runtime.MemStats
	for freed := uint64(0); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if runtime.ReadMemStats(&now); now.TotalAlloc > freed+enoughGarbage {
			debug.FreeOSMemory()
			freed = now.TotalAlloc
		}
	}
}

// run runs the programs that are chosen.
func run(ctx context.Context, nodes []sidecar.Node, log *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(maxProcessors)
	}
	// The profile of memory takes memory of its own.
	runtime.MemProfileRate = 0
	all := []lifecycle.Part{{Name: "memory", Run: freeMemory}}
	for _, n := range nodes {
		switch n.Role {
		case sidecar.Registrar:
			n.Registrar.Log = log
			all = append(all, lifecycle.Part{Name: "registrar", Run: func(ctx context.Context) error {
				return Registrar(ctx, n.Registrar)
			}})
		case sidecar.Liveness:
			n.Liveness.Log = log
			all = append(all, lifecycle.Part{Name: "liveness probe", Run: func(ctx context.Context) error {
				return Liveness(ctx, n.Liveness)
			}})
		}
	}
	return lifecycle.Run(ctx, log, all)
}

// healthTimeout is the time limit of a question to the registrar itself, unless another one is set.
const healthTimeout = time.Second

// Registrar waits for a driver and registers it with the node agent until ctx ends or the agent refuses the driver. It
// needs the driver's name only, so the node half of a driver in two processes is registered like any other.
func Registrar(ctx context.Context, o sidecar.RegistrarOptions) error {
	var driver atomic.Pointer[string]
	keep := registrar.Keeping{
		Socket: o.Socket, Endpoint: o.Endpoint, Plugins: filepath.Join(volume.KubeletDir, "plugins"), Dir: o.Dir,
		Timeout: o.Timeout, Announced: func(name string) { driver.Store(&name) }, Log: o.Log,
	}
	if o.Health == "" {
		return keep.Run(ctx)
	}
	paths := healthz.Paths{"/healthz": healthz.Check(cmp.Or(o.Timeout, healthTimeout),
		func(ctx context.Context) healthz.Answer { return registrationHealth(ctx, o.Dir, driver.Load()) })}
	if o.Pprof {
		paths.Profiles()
	}
	return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
		{Name: "health", Run: func(ctx context.Context) error { return healthz.Serve(ctx, o.Health, paths, o.Log) }},
		{Name: "registrar", Run: keep.Run},
	})
}

// registrationHealth says whether a node agent that asks the registration socket of a driver gets its answer. Without a
// name, the driver has not answered yet.
func registrationHealth(ctx context.Context, dir string, driver *string) healthz.Answer {
	if driver == nil {
		return healthz.Text(http.StatusNotFound, registrar.ErrNoSocket.Error())
	}
	switch err := registrar.Check(ctx, dir, *driver); {
	case err == nil:
		return healthz.Text(http.StatusOK, "ok")
	case errors.Is(err, registrar.ErrNoSocket):
		return healthz.Text(http.StatusNotFound, err.Error())
	default:
		return healthz.Text(http.StatusInternalServerError, err.Error())
	}
}
