package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// Doctor examines one driver.
type Doctor struct {
	// Exec is the command that starts the driver, in words like those of a shell; empty if the driver runs already.
	// $(CSI_ENDPOINT), $(NODE_NAME) and $(SCRATCH) in it are replaced by the address of the socket that the driver must
	// make, the name of this host, and the scratch directory.
	Exec string
	// Socket is the path of the driver's socket; the default is that of $(CSI_ENDPOINT). It may have the same references.
	Socket string
	// ControllerExec and ControllerSocket are the same for the process that serves the controller, if that is another one.
	ControllerExec, ControllerSocket string
	// Env has more environment variables of the processes, as NAME=VALUE. It may have the same references.
	Env []string
	// Scratch is the parent of the scratch directory; the default is /var/lib.
	Scratch string
	// Parameters, Secrets and FSType are those of the volumes.
	Parameters, Secrets map[string]string
	FSType              string
	// Size is the size of a volume in bytes; one is expanded to its double. The default is 64 MiB, or what the filesystem
	// needs at least.
	Size int64
	// Limit is the time limit of each call; the default is 20 s.
	Limit time.Duration
	// Patience is how long a call is repeated that may fail for a moment, because the driver was just killed; the default
	// is 10 s.
	Patience time.Duration
	// Progress is called with the name of each check before it is made; it may be nil.
	Progress func(check string)
	// Only has the names of the checks to make; the default is all. What all calls have in common is judged in any case.
	Only []string
}

const (
	defaultScratch  = "/var/lib"
	defaultLimit    = 20 * time.Second
	defaultPatience = 10 * time.Second
	// wholeLimit is the time limit of the whole examination, and cleanLimit that of the clean-up after it.
	wholeLimit = 10 * time.Minute
	cleanLimit = 30 * time.Second
)

// defaultSize returns the size of a volume that common drivers can make and double.
func defaultSize(fsType string) int64 {
	switch fsType {
	case "xfs", "btrfs":
		return 320 << 20
	}
	return 64 << 20
}

// Report is the result of an examination.
type Report struct {
	Driver  string `json:"driver,omitempty"`
	Version string `json:"version,omitempty"`
	// Level is the worst level of all findings.
	Level    finding.Level     `json:"level"`
	Findings []finding.Finding `json:"findings"`
	// Calls is the number of calls of the driver, Seconds the duration of the examination.
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// exam is one examination.
type exam struct {
	Doctor
	dir *scratch.Dir
	// node and controller are the processes of the driver. They are the same if one serves both; controller is nil if
	// none does.
	node, controller *process
	// plugin has the promises of both processes, and info is what the driver says of this node.
	plugin csi.PluginCapabilities
	info   csi.NodeInfo
	// memory has the secrets that were given to the driver, for package csi; given hides them here.
	memory  *csi.Memory
	given   redact.Secrets
	witness *witness
	report  Report
	// before has the ids of the volumes that were there before the examination.
	before map[string]bool
	// volumes are all that were made, and shared is the one of checks that change nothing.
	volumes []*vol
	shared  *vol
	// made takes back volumes, snapshots and groups of them, in the order in which they were made.
	made []undo
	// names counts the names that were given, and deaths how often the driver has ended by itself.
	names, deaths int
	// usual is how long each step of a volume has taken, by its name.
	usual map[string]time.Duration

	mu sync.Mutex
	// why is the reason why no further check is made, or nil.
	why error
}

// errHung says that a call has not ended within its limit.
var errHung = errors.New("the driver does not answer")

// stop ends the examination: no further check is made.
func (x *exam) stop(why error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.why = cmp.Or(x.why, why)
}

// stopped returns why the examination was stopped, or nil.
func (x *exam) stopped() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.why
}

// Run examines the driver and returns the findings. An error says that the driver could not be examined, that the
// examination was interrupted, or that something could not be removed; the report has the findings up to then. It may
// be repeated.
func (d *Doctor) Run(ctx context.Context) (Report, error) {
	// The kernel kills the driver when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun := time.Now()
	x := newExam(d)
	whole, cancel := context.WithTimeout(ctx, wholeLimit)
	defer cancel()
	err := x.begin(whole)
	switch {
	case err == nil:
		interrupted := context.AfterFunc(whole, func() { x.stop(whole.Err()) })
		x.examine(whole)
		interrupted()
	case errors.Is(err, csi.ErrName):
		// Nothing calls a driver with such a name, so nothing else can be checked.
		x.add(badName(err))
		err = nil
	}
	err = errors.Join(err, x.end(context.WithoutCancel(ctx)))
	x.report.Calls, x.report.Seconds = x.witness.count(), float64(time.Since(begun).Milliseconds())/1000
	if x.report.Level = finding.Worst(x.report.Findings); err != nil {
		x.report.Level = finding.Fail
	}
	return x.report, x.hide(err)
}

// hidden is an error whose text shows no secret.
type hidden struct {
	error
	text string
}

// Error returns the text without secrets.
func (h hidden) Error() string { return h.text }

// Unwrap returns the error itself.
func (h hidden) Unwrap() error { return h.error }

func (x *exam) hide(err error) error {
	if err == nil {
		return nil
	}
	return hidden{err, x.given.Hide(err.Error())}
}

func newExam(d *Doctor) *exam {
	x := &exam{
		Doctor: *d, memory: csi.NewMemory(nil), usual: map[string]time.Duration{}, before: map[string]bool{},
		report: Report{Findings: []finding.Finding{}},
	}
	x.Limit, x.Patience = cmp.Or(x.Limit, defaultLimit), cmp.Or(x.Patience, defaultPatience)
	x.Size = cmp.Or(x.Size, defaultSize(x.FSType))
	if len(x.Secrets) == 0 {
		x.Secrets = map[string]string{"volplane-doctor": "pa55word-of-nobody"}
	}
	x.given.AddData(x.Secrets)
	x.witness = newWitness(x.Secrets)
	return x
}

// begin makes the scratch directory, starts the driver, and asks it what it can do.
func (x *exam) begin(ctx context.Context) error {
	if err := x.checkArguments(); err != nil {
		return err
	}
	dir, left, err := scratch.Make(ctx, cmp.Or(x.Scratch, defaultScratch))
	for _, f := range left {
		x.add(f)
	}
	if err != nil {
		return fmt.Errorf("make a scratch directory: %w", err)
	}
	x.dir = dir
	if err := x.processes(); err != nil {
		return err
	}
	for _, p := range x.all() {
		if err := x.connect(ctx, p); err != nil {
			return err
		}
	}
	x.report.Driver, x.report.Version = x.node.d.Name, x.node.d.Version
	x.choose()
	if x.info, err = x.node.d.NodeInfo(ctx); err != nil && x.node.d.Node == (csi.NodeCapabilities{}) {
		return fmt.Errorf("there is no node service at %s: %w", x.node.socket, err)
	}
	if x.lists() {
		if x.before, err = x.listed(ctx); err != nil {
			x.before = map[string]bool{}
		}
	}
	x.shared = x.volume()
	return nil
}

// choose decides which process serves the controller.
func (x *exam) choose() {
	x.plugin = x.node.d.Plugin
	switch {
	case x.controller != nil:
		x.plugin.ControllerService = x.plugin.ControllerService || x.controller.d.Plugin.ControllerService
	case x.node.d.HasController:
		x.controller = x.node
	}
}

// badName returns the finding about a driver that cannot be called because of its name.
func badName(err error) finding.Finding {
	return finding.Finding{
		Check: "name", Level: finding.Fail, Message: err.Error() + "; nothing else was checked",
		Next: "answer GetPluginInfo with a domain name of yours, of at most 63 characters",
	}
}

// Checks returns the names of the checks that Only may have, in the order in which they are made.
func Checks() []string {
	var names []string
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}

// examine makes all checks, until the examination is stopped.
func (x *exam) examine(ctx context.Context) {
	for _, c := range checks() {
		if x.stopped() != nil {
			break
		}
		if c.needs != nil && !c.needs(x) || len(x.Only) > 0 && !slices.Contains(x.Only, c.name) {
			continue
		}
		if x.Progress != nil {
			x.Progress(c.name)
		}
		before := len(x.made)
		v := c.run(x, ctx)
		if x.stopped() == nil {
			if left := x.takeBack(ctx, before, false); len(left) > 0 && v.level != finding.Fail {
				v = skipped(left[0])
			}
		}
		if x.stopped() == nil {
			x.conclude(c, v)
		}
		x.checkAlive(ctx, c.name, v.level)
	}
}

// end takes everything back, judges what all calls have in common, and what is left.
func (x *exam) end(ctx context.Context) error {
	if x.dir == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	why := x.stopped()
	if why != nil && x.deaths == mostDeaths {
		why = nil // there are findings about it
		x.reset(ctx)
	}
	if errors.Is(why, errHung) {
		x.add(finding.Finding{
			Check: "time-limit", Level: finding.Fail, Message: fmt.Sprintf("%v; nothing was checked after that", why),
			Next: "bound whatever may wait, and answer with an error",
		})
		x.reset(ctx)
		why = nil
	}
	if x.shared != nil {
		left := x.takeBack(ctx, 0, true)
		x.leftovers(ctx, left)
		x.ofAllCalls()
	}
	x.terminate(ctx)
	return errors.Join(why, x.dir.CleanUp(ctx))
}

// add adds a finding without secrets.
func (x *exam) add(f finding.Finding) {
	const most = 1 << 10
	f.Message = redact.Line(x.given.Hide(f.Message), most)
	x.report.Findings = append(x.report.Findings, f)
}

// path returns a path in the scratch directory.
func (x *exam) path(names ...string) string {
	return filepath.Join(append([]string{x.dir.Root}, names...)...)
}

// control and serve return clients of the controller and of the node. The second pair calls over a connection of its
// own, so that two calls for one volume can be in flight.
func (x *exam) control() csipb.ControllerClient  { return x.controller.d.ControllerClient() }
func (x *exam) control2() csipb.ControllerClient { return x.controller.second.ControllerClient() }
func (x *exam) serve() csipb.NodeClient          { return x.node.d.NodeClient() }
func (x *exam) serve2() csipb.NodeClient         { return x.node.second.NodeClient() }

// promises returns what the controller promises; nothing if there is none.
func (x *exam) promises() csi.ControllerCapabilities {
	if x.controller == nil {
		return csi.ControllerCapabilities{}
	}
	return x.controller.d.Controller
}
