package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// Doctor examines one driver.
type Doctor struct {
	// Path is the path of the executable, and Name the driver's name; install.Locate returns both.
	Path string
	Name decide.Name
	// Scratch is the parent of the scratch directory; the default is /var/lib, which gives the
	// scratch directory the depth that drivers rely on.
	Scratch string
	// Options, FSType and Secrets are those of the volume. Node is the name of this node; the default is the host's name.
	Options map[string]string
	FSType  string
	Secrets map[string]string
	Node    string
	// GrowTo is the size in bytes to which the volume is expanded; 0 expands nothing. The volume keeps that size.
	GrowTo int64
	// Limit is the time limit of each call; the default is 2 min. That of init is at most 10 s, as in volplane's host.
	Limit time.Duration
}

// The Secret of a volume for which none was given.
const user, password = "someone-who-mounts", "pa55word-of-nobody"

const (
	defaultScratch = "/var/lib"
	// defaultLimit is how long a kubelet waits for the volumes of a Pod until it complains.
	defaultLimit = 2 * time.Minute
	// cleanLimit is the time limit of the clean-up after the last check.
	cleanLimit = 30 * time.Second
)

// exam is one examination.
type exam struct {
	Doctor
	// ownSecrets says that secrets were given; given removes the secrets from texts.
	ownSecrets bool
	given      redact.Secrets
	// dir is the scratch directory, and root its path. canary is a file that no driver creates by itself.
	dir          *scratch.Dir
	root, canary string
	report       Report
	calls        []call
	// undo holds the calls that are made at the end, the last one first.
	undo []undo

	// observes says that isattached distinguishes a volume that is attached from one that is not.
	observes bool

	// goesOn ends when no further check is made; its cause is the reason. stop ends it. The call that is in flight then
	// is waited for.
	goesOn context.Context //nolint:containedctx // no call is made with it
	stop   context.CancelCauseFunc
}

func (x *exam) stopped() bool { return x.goesOn.Err() != nil }

// Run examines the driver and returns the findings. An error says that the driver could not be
// examined, that the examination was interrupted, or that something could not be removed; the
// report has the findings up to then. It may be repeated.
func (d *Doctor) Run(ctx context.Context) (Report, error) {
	// The kernel kills the driver when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun := time.Now()
	x, err := d.begin(ctx)
	if err != nil {
		return x.report, err
	}
	stop := x.stop
	interrupted := context.AfterFunc(ctx, func() { stop(ctx.Err()) })
	x.examine(ctx)
	interrupted()
	why := context.Cause(x.goesOn)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	x.goesOn, x.stop = context.WithCancelCause(context.Background())
	if len(x.calls) > 0 {
		x.afterwards(clean)
	}
	if errors.Is(why, errHung) {
		x.fail("time-limit", both(), "bound whatever may wait, and answer Failure", "%v; nothing was checked after that",
			why)
		why = nil
	}
	if len(x.calls) > 0 {
		x.ofAllCalls()
	}
	err = errors.Join(why, x.dir.CleanUp(clean))
	x.report.Level, x.report.Calls, x.report.Seconds = finding.Worst(x.report.Findings), len(x.calls),
		seconds(time.Since(begun))
	if err == nil {
		works := decide.WorksIn(x.report.Findings)
		x.report.Works = &works
	}
	return x.report, err
}

// begin creates the scratch directory, after those of killed examinations were removed.
func (d *Doctor) begin(ctx context.Context) (*exam, error) {
	x := &exam{Doctor: *d, report: Report{Driver: d.Name.String(), Path: d.Path, Level: finding.Fail}}
	x.Limit = cmp.Or(d.Limit, defaultLimit)
	x.goesOn, x.stop = context.WithCancelCause(context.Background())
	if err := decide.CheckOptions(d.Options); err != nil {
		return x, fmt.Errorf("options of the volume: %w", err)
	}
	if x.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return x, fmt.Errorf("name of this node: %w", err)
		}
		x.Node = host
	}
	dir, left, err := scratch.Make(ctx, cmp.Or(d.Scratch, defaultScratch))
	for _, f := range left {
		x.add(f)
	}
	if err != nil {
		return x, fmt.Errorf("make a scratch directory: %w", err)
	}
	x.dir, x.root = dir, dir.Root
	x.canary = filepath.Join(x.root, "canary")
	x.ownSecrets = len(d.Secrets) > 0
	x.given.AddData(d.Secrets)
	if !x.ownSecrets {
		x.Secrets = map[string]string{userKey: user, "password": password}
		x.given.Add(password)
	}
	return x, nil
}

// odd returns a value with characters that are special to a shell.
func (x *exam) odd(word string) string {
	return word + " $(touch " + x.canary + ") `touch " + x.canary + "` ; touch " + x.canary +
		" | * ? ' \" \\ < > & # {} é"
}

// examine makes all checks, until one stops the examination.
func (x *exam) examine(ctx context.Context) {
	if !x.file() || !x.init(ctx) {
		return
	}
	x.unknown(ctx)
	v := x.volume("pv1", 1)
	if x.report.Capabilities.Attach {
		x.attachable(ctx, v)
		return
	}
	x.mountable(ctx, v)
	if x.GrowTo > 0 {
		x.up(ctx, v)
		x.grows(ctx, v, "", v.dir)
		x.down(ctx, v)
	}
}

// undo is a call that undoes what the driver has done. An unmount is only called if something is
// mounted at or below its directory.
type undo struct {
	op   decide.Operation
	what string
}

// afterwards has the driver undo what it has done, and checks what is left then.
func (x *exam) afterwards(ctx context.Context) {
	judged := x.calls
	for _, u := range slices.Backward(x.undo) {
		if u.op == decide.OpDetach {
			x.call(ctx, u.op, u.what, x.Node)
		} else if len(within(x.table(), u.what)) > 0 {
			x.call(ctx, u.op, u.what)
		}
	}
	x.calls = judged
	pids := x.remaining(ctx)
	x.wrongIf(len(pids) > 0,
		fmt.Sprintf("%d processes of the driver still run when nothing is mounted any more", len(pids)),
		question{"leftover-processes", nil, "end in unmount what mount has started", "no process is left"})
	reason := ""
	if left := within(x.table(), x.root); len(left) > 0 {
		reason = "something is still mounted at " + left[0].Path
	}
	x.answer(question{
		"leftover-mounts", both(), "unmount in unmount all that mount has mounted", "nothing is left mounted",
	}, reason)
}

// remaining returns the driver's running processes, after giving them a moment to end.
func (x *exam) remaining(ctx context.Context) []int {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	const tries = 50
	for try := 1; ; try++ {
		pids := x.dir.Processes()
		if len(pids) == 0 || try == tries {
			return pids
		}
		select {
		case <-ctx.Done():
			return pids
		case <-pause.C:
		}
	}
}
