package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/redact"
)

// Doctor examines one driver.
type Doctor struct {
	// Path is the path of the executable, and Name the driver's name; Locate returns both.
	Path string
	Name decide.Name
	// Scratch is the parent of the scratch directory; the default is /var/lib, which gives the
	// scratch directory the depth that drivers rely on.
	Scratch string
	// Options, FSType and Secrets are those of the volume. Node is the name of this node; the
	// default is the host's name.
	Options map[string]string
	FSType  string
	Secrets map[string]string
	Node    string
	// GrowTo is the size in bytes to which the volume is expanded; 0 expands nothing. The volume
	// keeps that size.
	GrowTo int64
	// Limit is the time limit of each call; the default is 10 s.
	Limit time.Duration
}

const (
	defaultScratch = "/var/lib"
	defaultLimit   = 10 * time.Second
	// cleanLimit is the time limit of the clean-up after the last check.
	cleanLimit = 30 * time.Second
)

// Locate returns the path and the name of a driver that is given by its path ("/x/lofs", "./lofs")
// or, if it is installed in a plugin directory, by its name.
func Locate(subject, pluginDir string) (path string, name decide.Name, err error) {
	if strings.HasPrefix(subject, "/") || strings.HasPrefix(subject, ".") {
		if path, err = filepath.Abs(subject); err != nil {
			return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
		}
		name, err = decide.ParseDir(filepath.Base(filepath.Dir(path)))
		if err != nil || name.Driver != filepath.Base(path) {
			name, err = decide.ParseName(filepath.Base(path))
		}
		return path, name, err
	}
	if name, err = decide.ParseName(subject); err != nil {
		return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
	}
	return filepath.Join(pluginDir, name.Dir(), name.Driver), name, nil
}

// exam is one examination.
type exam struct {
	path, node, fsType string
	name               decide.Name
	limit              time.Duration
	growTo             int64
	options, secrets   map[string]string
	// given removes the secrets from texts.
	given redact.Secrets
	// root is the scratch directory. mark is the environment variable of all processes that the
	// driver starts. canary is a file that no driver creates by itself.
	root, mark, canary string
	// lock is the open scratch directory, locked while the examination runs.
	lock   *os.File
	report Report
	calls  []call
	// undo holds the calls that are made at the end, the last one first.
	undo []undo

	mu sync.Mutex
	// why is the reason why the examination was stopped, or nil.
	why error
}

// stop ends the examination: no further check is made.
func (x *exam) stop(why error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.why == nil {
		x.why = why
	}
}

func (x *exam) stopped() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.why != nil
}

// resume allows checks again, and returns why the examination was stopped.
func (x *exam) resume() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	why := x.why
	x.why = nil
	return why
}

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
	interrupted := context.AfterFunc(ctx, func() { x.stop(ctx.Err()) })
	x.examine(ctx)
	interrupted()
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	why := x.resume()
	x.afterwards(clean)
	if errors.Is(why, errHung) {
		x.fail("time-limit", "bound whatever may wait, and answer Failure", "%v; nothing was checked after that", why)
		why = nil
	}
	x.ofAllCalls()
	err = errors.Join(why, x.cleanUp(clean))
	x.report.Level, x.report.Calls, x.report.Seconds = decide.Worst(x.report.Findings), len(x.calls),
		seconds(time.Since(begun))
	return x.report, err
}

// begin creates the scratch directory, after those of killed examinations were removed.
func (d *Doctor) begin(ctx context.Context) (*exam, error) {
	x := &exam{
		path: d.Path, name: d.Name, node: d.Node, fsType: d.FSType, limit: d.Limit, options: d.Options, growTo: d.GrowTo,
	}
	x.report = Report{Driver: d.Name.String(), Path: d.Path, Level: decide.Fail}
	if err := decide.CheckOptions(d.Options); err != nil {
		return x, fmt.Errorf("options of the volume: %w", err)
	}
	if x.limit <= 0 {
		x.limit = defaultLimit
	}
	if x.node == "" {
		host, err := os.Hostname()
		if err != nil {
			return x, fmt.Errorf("name of this node: %w", err)
		}
		x.node = host
	}
	if err := x.scratch(ctx, cmp.Or(d.Scratch, defaultScratch)); err != nil {
		return x, fmt.Errorf("make a scratch directory: %w", err)
	}
	x.canary = filepath.Join(x.root, "canary")
	x.secrets = d.Secrets
	x.given.AddData(d.Secrets)
	if len(x.secrets) == 0 {
		// Only this part is hidden: the whole value contains the path of the scratch directory.
		const password = "pa55word-of-nobody"
		x.secrets = map[string]string{"username": "someone-who-mounts", "password": x.odd(password)}
		x.given.Add(password)
	}
	return x, nil
}

// scratch creates the scratch directory in a directory.
func (x *exam) scratch(ctx context.Context, in string) error {
	// The mount table has paths without symbolic links.
	in, err := filepath.EvalSymlinks(in)
	if err != nil {
		return err
	}
	parent, err := os.Open(in)
	if err != nil {
		return err
	}
	defer parent.Close()
	clean, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	if err := x.cleanUpKilled(clean, parent); err != nil {
		return err
	}
	x.root, x.lock, err = makeScratch(parent)
	x.mark = markOf(x.root)
	return err
}

// odd returns a value with characters that are special to a shell.
func (x *exam) odd(word string) string {
	return word + " $(touch " + x.canary + ") `touch " + x.canary + "` ; touch " + x.canary +
		" | * ? ' \" \\ < > & # {} é"
}

// examine makes all checks, until one stops the examination.
func (x *exam) examine(ctx context.Context) {
	x.file()
	if !x.init(ctx) {
		return
	}
	x.unknown(ctx)
	v := x.volume("pv1", 1)
	if x.report.Capabilities.Attach {
		x.attachable(ctx, v)
		return
	}
	x.others(ctx, v)
	x.mountable(ctx, v)
	if x.growTo > 0 {
		x.up(ctx, v)
		x.grows(ctx, v, "", v.dir)
		x.down(ctx, v)
	}
}
