package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/process/queue"
)

// Options configures a Supervisor.
type Options struct {
	// Dir is the directory of its state, which is created if needed; no other user may write to it. For each program
	// it has NAME.json, the record, NAME.log, what the program prints, and NAME.log.1, what it has printed before.
	Dir string
	// Gate is the command line of a process that calls Gate.
	Gate []string
	// Log is where it logs what it does.
	Log *slog.Logger
	// Retry bounds the pauses before a program is started again; from a second to a minute if it is zero.
	Retry queue.Backoff
	// Grace is how long a program that is asked to stop may take before it is killed; ten seconds if it is zero.
	Grace time.Duration

	// settled is after which time a program has settled; the first failure after it is followed by the first pause.
	settled time.Duration
	// cgroups is the directory of all cgroups, "" to find it.
	cgroups string
	// keptOutput is how much output a log has.
	keptOutput int64
	// step, if set, is called before each step: tests end the process there.
	step func(string)
}

func (o *Options) complete() {
	if o.Retry == (queue.Backoff{}) {
		o.Retry = queue.Backoff{Min: time.Second, Max: time.Minute}
	}
	o.Grace = cmp.Or(o.Grace, 10*time.Second)
	if o.settled == 0 {
		o.settled = time.Minute
	}
	o.keptOutput = cmp.Or(o.keptOutput, keptOutput)
	if o.step == nil {
		o.step = func(string) {}
	}
}

// Supervisor keeps programs running. It is safe for concurrent use.
type Supervisor struct {
	Options
	boot    string
	lock    *os.File
	watches *watches

	mu sync.Mutex
	// held are the names on which Run or Stop works.
	held map[string]*hold
}

// hold is the holder of a name: done is closed when the name is released, and stop asks the holder to release it.
type hold struct {
	stop func()
	done chan struct{}
}

var (
	// ErrHeld says that Run or Stop works on the program already.
	ErrHeld = errors.New("the program is being supervised already")
	// ErrStopped says that Stop has ended Run.
	ErrStopped = errors.New("the program was stopped")
)

// Open returns the supervisor of a directory. Only one process may have it: Open waits for another until ctx ends, and
// returns durable.ErrLocked then. Its other errors are ErrUnsafe, and those of the disk. It may be repeated.
func Open(ctx context.Context, o Options) (*Supervisor, error) {
	o.complete()
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of programs: %w", err)
	}
	if err := checkSafe(o.Dir); err != nil {
		return nil, err
	}
	boot, err := durable.Boot()
	if err != nil {
		return nil, err
	}
	lock, err := durable.Lock(ctx, filepath.Join(o.Dir, "lock"))
	if err != nil {
		return nil, err
	}
	if o.cgroups == "" {
		if o.cgroups, err = findCgroups(o.Dir); err != nil {
			o.Log.Warn("programs are started without cgroups: what they leave behind is not followed", "error", err)
		}
	}
	return &Supervisor{Options: o, boot: boot, lock: lock, watches: newWatches(), held: map[string]*hold{}}, nil
}

// Close lets another process have the directory. Call it when all calls of Run have returned. Programs live on.
func (s *Supervisor) Close() error {
	if s.cgroups != "" {
		_ = unix.Rmdir(s.cgroups) // as long as there are programs it fails, and has to
	}
	s.watches.close()
	return s.lock.Close()
}

// Run keeps a program running until ctx ends. Then it returns nil and leaves the program alive: the next Run of an
// equal Program adopts it, here or in a later process. If another Program of that name runs, Run ends that one's main
// process first; what it has left behind, such as the daemons of FUSE mounts, lives on.
//
// changed, if it is not nil, is called with the record after each change, one call at a time. Run returns an error if
// it cannot supervise the program: ErrInvalid, ErrHeld, durable.ErrNewer, ErrStopped after Stop, and those of the
// kernel. A program that cannot be started is not an error; its record says so. Run may be repeated.
func (s *Supervisor) Run(ctx context.Context, p Program, changed func(Record)) error {
	if err := p.check(); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	release, other := s.take(p.Name, func() { stop(ErrStopped) })
	if other != nil {
		return fmt.Errorf("%w: %s", ErrHeld, p.Name)
	}
	defer release()
	if changed == nil {
		changed = func(Record) {}
	}
	r := &run{
		s: s, p: p, group: s.group(p.Name), output: OutputPath(s.Dir, p.Name), changed: changed,
		log: s.Log.With("program", p.Name),
	}
	var trimming sync.WaitGroup
	trimming.Go(func() {
		trimOutput(ctx, s.watches.watch(), r.output, s.keptOutput, func(err error) {
			r.log.Warn("the log cannot be kept small", "error", err)
		})
	})
	err := r.keep(ctx)
	if ctx.Err() != nil {
		err = nil // it only says so
	}
	if errors.Is(context.Cause(ctx), ErrStopped) {
		err = ErrStopped
	}
	stop(nil)
	trimming.Wait()
	return err
}

// take has a name held until release is called, or returns who holds it.
func (s *Supervisor) take(name string, stop func()) (release func(), other *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.held[name]; other != nil {
		return nil, other
	}
	h := &hold{stop: stop, done: make(chan struct{})}
	s.held[name] = h
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, name)
		close(h.done)
	}, nil
}

// group returns the cgroup of a program, "" if the host has none.
func (s *Supervisor) group(name string) group {
	if s.cgroups == "" {
		return ""
	}
	return group(filepath.Join(s.cgroups, name))
}

// Stop ends a program and all that it has left behind, and removes its record, its log and its cgroup. It asks the main
// process to stop, and kills it after Options.Grace; the rest is killed. A Run of the program ends with ErrStopped. If
// ctx ends before, Stop returns its error. It may be repeated; a program that does not exist is not an error.
func (s *Supervisor) Stop(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	for {
		release, other := s.take(name, func() {})
		if other == nil {
			defer release()
			break
		}
		other.stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-other.done:
		}
	}
	if err := s.endAll(ctx, name); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return s.remove(name)
}

// StopAlone does Stop for programs of a directory that no supervisor has, and says whether it has done so: false means
// that there is a supervisor, which sees to its programs itself. It may be repeated.
func StopAlone(ctx context.Context, dir string, programs []string) (bool, error) {
	once, cancel := context.WithCancel(ctx)
	cancel() // so that the lock is tried, and not waited for
	s, err := Open(once, Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if errors.Is(err, durable.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, program := range programs {
		err = errors.Join(err, s.Stop(ctx, program))
	}
	return true, errors.Join(err, s.Close())
}

// endAll ends all processes of a program.
func (s *Supervisor) endAll(ctx context.Context, name string) error {
	old, err := Read(s.Dir, name)
	if errors.Is(err, durable.ErrNewer) {
		return err
	}
	group := s.group(name)
	main, _, err := s.mainOf(old)
	if err != nil {
		return err
	}
	if main != nil {
		defer main.Close()
		err = s.endMain(ctx, old, main)
	} else if last := group.last(); populated(last) {
		err = s.endCgroup(ctx, last)
	}
	if err != nil || group == "" {
		return err
	}
	s.step("kill the rest")
	if err := s.watches.killCgroup(ctx, string(group)); err != nil {
		return fmt.Errorf("processes %v do not end: %w", processesOf(string(group)), err)
	}
	s.step("remove cgroup")
	return removeCgroup(string(group))
}

// mainOf returns the main process that a record of this boot names; nil if it does not live, and then how it has ended.
func (s *Supervisor) mainOf(r Record) (*process, exit, error) {
	if r.PID == 0 || r.Boot != s.boot {
		return nil, exit{}, nil
	}
	p, err := openProcess(r.PID, r.StartTime)
	if errors.Is(err, errGone) {
		return nil, exit{}, nil
	}
	if err == nil && p.ended() {
		return nil, p.exit(), p.Close()
	}
	return p, exit{}, err
}

// write writes a record.
func (s *Supervisor) write(r Record) error { return durable.WriteJSON(recordPath(s.Dir, r.Name), r) }

// endMain ends the main process that a record names; the rest of its process group, too, if there is no cgroup by which
// that is found.
func (s *Supervisor) endMain(ctx context.Context, r Record, main *process) error {
	// A supervisor that finds it ended must not take the remaining processes for a daemon, although it may end with
	// success.
	r.Settled = true
	s.step("write that it ends")
	if err := s.write(r); err != nil {
		s.Log.Warn("the record cannot be written", "program", r.Name, "error", err)
	}
	s.step("ask to end")
	if err := main.signal(syscall.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, s.Grace)
	defer cancel()
	err := main.wait(patient)
	if err != nil && ctx.Err() == nil {
		if err := main.signal(syscall.SIGKILL); err != nil {
			return err
		}
		err = main.wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("process %d does not end: %w", main.pid, err)
	}
	if start, err := startTime(main.pid); r.Cgroup == "" && (err != nil || start == main.start) {
		// No other process has its pid, which is the number of its group as long as that has members.
		err = killGroup(ctx, main.pid)
		main.exit()
		return err
	}
	main.exit()
	return nil
}

// killGroup kills the processes of a process group, and returns when all have ended that were there.
func killGroup(ctx context.Context, pgid int) error {
	_ = unix.Kill(-pgid, unix.SIGKILL)
	for _, pid := range groupMembers(pgid) {
		p, err := openProcess(pid, 0)
		if err != nil {
			continue // it has ended
		}
		// A process that has come by the pid is not in the group.
		if slices.Contains(groupMembers(pgid), pid) {
			err = p.wait(ctx)
		}
		if err = errors.Join(err, p.Close()); err != nil {
			return fmt.Errorf("process %d does not end: %w", pid, err)
		}
	}
	return nil
}

// endCgroup ends all processes of a cgroup.
func (s *Supervisor) endCgroup(ctx context.Context, dir string) error {
	s.step("ask to end")
	signalCgroup(dir, syscall.SIGTERM)
	patient, cancel := context.WithTimeout(ctx, s.Grace)
	defer cancel()
	err := s.watches.emptied(patient, dir)
	if err != nil && ctx.Err() == nil {
		err = s.watches.killCgroup(ctx, dir)
	}
	if err != nil {
		return fmt.Errorf("processes %v do not end: %w", processesOf(dir), err)
	}
	return nil
}

// remove removes the files of a program; the record last, because it says that there is something to remove.
func (s *Supervisor) remove(name string) error {
	s.step("remove files")
	log, record := OutputPath(s.Dir, name), recordPath(s.Dir, name)
	for _, path := range []string{log, olderOutput(log), olderOutput(log) + durable.Draft, record + durable.Draft} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.step("remove record")
	return durable.Remove(record)
}
