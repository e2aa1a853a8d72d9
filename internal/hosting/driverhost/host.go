package driverhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/queue"
)

const (
	// rescan is the pause between two scans of the files without a notice, and rescanUnnoticed the same if the kernel
	// gives no notices.
	rescan, rescanUnnoticed = 5 * time.Minute, 30 * time.Second
	// stopPause is the pause before a program that did not end is stopped again.
	stopPause = 30 * time.Second
	// stopPatience is the time after which it is reported that a program does not end, and ending it is tried again.
	stopPatience = time.Minute
)

// ErrNoValue is the error for a value of a Secret that does not exist. The driver is tried again later, unless it can
// do without the value.
var ErrNoValue = errors.New("does not exist")

// Options configure a Host.
type Options struct {
	// Files is the directory of the drivers' files.
	Files driverfile.Dir
	// RootDir is the node agent's root directory, which has the sockets of drivers.
	RootDir string
	// Node is the name of this host's node.
	Node string
	// Gate is the command line of a process that calls supervise.Gate.
	Gate []string
	// Controllers receives the drivers that are reached at a socket that has their controller only.
	Controllers *csi.Set
	// Dial are options of the connections to controllers.
	Dial []csi.Option
	// Secret returns a value of a Secret. Its error is ErrNoValue if the Secret or the key does not exist.
	Secret func(ctx context.Context, namespace, name, key string) (string, error)
	// Identify returns an identity of a service account; nil if this host can get none.
	Identify func(ctx context.Context, namespace, name string) (Identity, error)
	// Reached is called whenever a process with the role of the controller answers, with what the driver's file and the
	// process say.
	Reached func(ctx context.Context, d driverfile.Driver, said *csi.Driver)
	// Failed is called with each new cause for which a file, or a driver, cannot be used; about names it.
	Failed func(about string, err error)
	// Mended is called when a file, or a driver, that was reported to Failed can be used again, or is gone.
	Mended func(about string)
	// Log is the log of the program.
	Log *slog.Logger
	// Retry bounds the pauses of what is tried again; from half a second to a minute if it is zero.
	Retry queue.Backoff

	// accountPlace is where programs look for the files of their account.
	accountPlace string
	// grace is that of the programs, as in supervise.Options.
	grace time.Duration
}

// StateDir returns the directory of the records and logs of drivers' programs below a node agent's root directory.
func StateDir(root string) string { return filepath.Join(root, "drivers") }

// PluginDir returns the directory of drivers' sockets.
func PluginDir(root string) string { return filepath.Join(root, "plugins") }

func registryDir(root string) string { return filepath.Join(root, "plugins_registry") }

// Host runs the drivers of a host.
type Host struct {
	Options
	programs *supervise.Supervisor
	// running holds the drivers that are followed, by name.
	running map[string]*running
	// reported holds the last reported errors of each file and driver.
	reported lastErrors
	// registry notifies of changes of the registration sockets.
	registry changes
	// stopping holds the programs that are being ended, and stopped receives each when that was tried. One that does not
	// end holds up no other driver.
	stopping map[string]bool
	stopped  chan string
	stops    sync.WaitGroup
}

// running is one driver that is followed.
type running struct {
	driver driverfile.Driver
	// leave ends the goroutines of the driver, which are done then. Its programs live on.
	leave context.CancelFunc
	done  sync.WaitGroup
}

// Run runs the drivers until ctx ends. It fails if another process runs those of the same root directory, or if the
// directory of their records cannot be used. It may be repeated.
func Run(ctx context.Context, o Options) error {
	if o.Retry == (queue.Backoff{}) {
		o.Retry = queue.Backoff{Min: 500 * time.Millisecond, Max: time.Minute}
	}
	o.accountPlace = cmp.Or(o.accountPlace, accountPlace)
	programs, err := supervise.Open(ctx, supervise.Options{
		Dir: StateDir(o.RootDir), Gate: o.Gate, Log: o.Log, Grace: o.grace,
	})
	if err != nil {
		return fmt.Errorf("run drivers: %w", err)
	}
	h := &Host{
		Options: o, programs: programs, running: map[string]*running{}, stopping: map[string]bool{},
		stopped: make(chan string),
	}
	defer func() {
		for _, r := range h.running {
			r.leave()
		}
		for _, r := range h.running {
			r.done.Wait()
		}
		h.stops.Wait()
		_ = programs.Close()
	}()
	return h.follow(ctx)
}

// follow reconciles the files whenever they change, and notifies the registrars of changes of their sockets: a host
// has few inotify instances, and may have many drivers.
func (h *Host) follow(ctx context.Context) error {
	notices, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the files of drivers: %w", err)
	}
	defer notices.Close()
	pause := rescan
	for _, dir := range []string{string(h.Files), registryDir(h.RootDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("run drivers: %w", err)
		}
		if err := notices.Add(dir); err != nil {
			h.Log.Warn("no notices of changes, they are found late", "dir", dir, "err", err)
			pause = rescanUnnoticed
		}
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	h.look(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-notices.Events:
			if filepath.Dir(e.Name) == registryDir(h.RootDir) {
				h.registry.notify()
				continue
			}
		case err := <-notices.Errors:
			h.Log.Warn("notice of a driver's file may be lost", "err", err)
			h.registry.notify()
		case program := <-h.stopped:
			delete(h.stopping, program)
		case <-tick.C:
		}
		h.look(ctx)
	}
}

// look reads the files, and does what they say.
func (h *Host) look(ctx context.Context) {
	wanted, broken := h.Files.Read()
	for path, err := range broken {
		h.fail(path, "", err)
	}
	for _, about := range h.reported.subjects() {
		if _, is := broken[about]; !is && isFile(h.Files, about) {
			h.mend(about, "")
		}
	}
	known, err := supervise.Names(StateDir(h.RootDir))
	if err != nil {
		h.Log.Warn("the records of drivers cannot be listed", "err", err)
	}
	p := planOf(h.now(), wanted, broken, known, h.Files)
	for _, name := range p.leave {
		r := h.running[name]
		r.leave()
		r.done.Wait()
		delete(h.running, name)
		h.mend(subject(name), "")
	}
	for _, program := range p.stop {
		h.stop(ctx, program)
	}
	h.forgetAccounts(wanted, broken)
	for _, d := range p.start {
		// A program of the driver that is still ending may have the socket. When it has ended, the files are reconciled
		// again.
		if !slices.ContainsFunc(driverfile.ProgramsOf(d.Name), func(program string) bool { return h.stopping[program] }) {
			h.start(ctx, d)
		}
	}
}

// now returns the drivers that are followed.
func (h *Host) now() map[string]driverfile.Driver {
	out := map[string]driverfile.Driver{}
	for name, r := range h.running {
		out[name] = r.driver
	}
	return out
}

// stop begins to end a program, unless that is under way. It is tried again after a pause.
func (h *Host) stop(ctx context.Context, program string) {
	if h.stopping[program] {
		return
	}
	h.Log.Info("the file of a driver is gone: its program is ended", "program", program)
	h.stopping[program] = true
	h.stops.Go(func() {
		about := "program " + program
		bounded, cancel := context.WithTimeout(ctx, stopPatience)
		defer cancel()
		err := h.programs.Stop(bounded, program)
		if err != nil && ctx.Err() == nil {
			h.fail(about, "", err)
			lifecycle.Sleep(ctx, stopPause)
		} else if err == nil {
			h.mend(about, "")
		}
		h.forgetRegistration(ctx, program)
		select {
		case h.stopped <- program:
		case <-ctx.Done():
		}
	})
}

// forgetRegistration removes what an earlier process of the host, which was killed, has left of the registration of a
// driver whose program is ended.
func (h *Host) forgetRegistration(ctx context.Context, program string) {
	driver := strings.TrimSuffix(program, "-"+string(driverfile.RoleNode))
	if err := registrar.RemoveStale(ctx, registryDir(h.RootDir), driver); err != nil && ctx.Err() == nil {
		h.Log.Warn("the registration socket of a driver that is gone cannot be removed", "driver", driver, "err", err)
	}
}

// start follows a driver from now on.
func (h *Host) start(ctx context.Context, d driverfile.Driver) {
	own, leave := context.WithCancel(ctx)
	r := &running{driver: d, leave: leave}
	h.running[d.Name] = r
	for _, p := range d.Processes {
		one := &process{h: h, driver: d, Process: p, socket: d.Socket(p, PluginDir(h.RootDir))}
		for _, run := range one.deeds() {
			r.done.Go(func() { run(own) })
		}
	}
}

// fail reports an error of a file or driver once, until another one takes its place. by is the process that has
// the error.
func (h *Host) fail(about, by string, err error) {
	all, changed := h.reported.add(about, by, err.Error())
	if !changed {
		return
	}
	h.Log.Warn("a driver cannot be used", "of", about, "err", err)
	h.report(about, all)
}

// mend reports that a process of a driver no longer has an error; "" stands for all of the driver.
func (h *Host) mend(about, by string) {
	if left, changed := h.reported.drop(about, by); changed {
		h.report(about, left)
	}
}

// report reports what is wrong with a file or driver; "" if nothing is.
func (h *Host) report(about, wrong string) {
	switch {
	case wrong == "" && h.Mended != nil:
		h.Mended(about)
	case wrong != "" && h.Failed != nil:
		h.Failed(about, errors.New(wrong))
	}
}

func isFile(dir driverfile.Dir, about string) bool {
	return about == string(dir) || filepath.Dir(about) == string(dir)
}
