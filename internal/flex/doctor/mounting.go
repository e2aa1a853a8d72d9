package doctor

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// Advice that several findings share.
const (
	giveOptions    = "if the volume needs them, give options with --option, --fstype and --secret-file"
	lookFirst      = "read the mount table first, and answer Success when it is mounted"
	quoteArguments = `use "$2" and "$@", never $2 or $*`
	takeAway       = "take away what was mounted before answering Failure"
)

// byHand returns a shell command that calls the driver as the examination did.
func (x *exam) byHand(call string) string {
	return "run it manually: " + filepath.Base(x.Path) + " " + call
}

// mountable makes the checks of mount and unmount.
func (x *exam) mountable(ctx context.Context, v vol) {
	if !x.mounts(ctx, v) {
		return
	}
	x.mountAgain(ctx, v)
	x.unmounts(ctx, v)
	x.keepsData(ctx, v)
	x.inUse(ctx, v)
	x.twoPods(ctx)
	x.readOnly(ctx, v)
	x.arguments(ctx, v)
	x.elsewhere(ctx)
	x.failing(ctx)
}

// mounts mounts a volume and says whether the checks that need it can follow.
func (x *exam) mounts(ctx context.Context, v vol) bool {
	const name = "mount"
	c := x.mount(ctx, v, x.json(decide.OpMount, v))
	if !c.ok() {
		next := decide.PodAuthor.Should(giveOptions)
		if c.err != nil || c.unsupported() {
			next = finding.Author.Should(x.byHand("mount DIR JSON"))
		}
		x.add(finding.Finding{Check: name, Level: finding.Fail, Message: c.why(), Next: next, Breaks: both()})
		return false
	}
	info, err := os.Lstat(v.dir)
	switch here, below := at(c.after, v.dir), within(c.added(), v.dir); {
	case err == nil && info.Mode()&os.ModeSymlink != 0:
		x.warn(name, "mount the volume at the directory itself",
			"the directory was replaced by a symbolic link: a host cannot see whether the volume is mounted")
		return false
	case len(here) == 0 && len(below) == 0:
		x.warn(name, "mount the volume at the directory, by bind if need be",
			"it answers Success and nothing is mounted at the directory: a host cannot see whether it is")
		x.unmounts(ctx, v)
		return false
	case len(here) == 0:
		x.warn(name, "mount the volume at the directory itself", "nothing is mounted at the directory but at %s",
			below[0].Path)
	case len(here) > 1:
		x.warn(name, "mount once", "%d mounts lie on top of each other", len(here))
	default:
		x.pass(name, "%s is mounted", here[0].Source)
	}
	x.mountPlace(c, v)
	x.seen(v)
	return !x.stopped()
}

// mountPlace looks for mounts that a call has made elsewhere in the scratch directory. Who made
// mounts outside of it is not known.
func (x *exam) mountPlace(c call, v vol) {
	reason := ""
	for _, p := range minus(within(c.added(), x.root), within(c.added(), v.dir)) {
		reason = "it mounts something beside the directory: " + p.Path
	}
	x.answer(question{
		"mount-place", nil, "mount nowhere else, or in a directory of the driver's own",
		"it mounts nothing beside the directory",
	}, reason)
}

// mountAgain calls mount for a volume that is mounted, which no host does: it checks first
// (F-012). A second mount is removed, so that the checks that follow see what a host has.
func (x *exam) mountAgain(ctx context.Context, v vol) {
	const name = "mount-again"
	before := within(x.table(), v.dir)
	c := x.mount(ctx, v, x.json(decide.OpMount, v))
	x.unjudged()
	switch after := within(c.after, v.dir); {
	case len(after) > len(before):
		x.warn(name, lookFirst, "a second mount lies on top of the first")
	case len(after) < len(before):
		x.warn(name, lookFirst, "a second mount takes the first away")
	case !c.ok():
		x.warn(name, lookFirst, "what is mounted should be a success: %s", c.why())
	default:
		x.pass(name, "what is mounted stays as it is")
	}
	x.peel(v.dir, before)
}

// peel unmounts what lies on the mounts that were at and below a directory before.
func (x *exam) peel(dir string, before []mount.Point) {
	for _, p := range slices.Backward(minus(within(x.table(), dir), before)) {
		if len(at(x.table(), p.Path)) <= len(at(before, p.Path)) {
			continue // it has replaced the existing mount
		}
		if err := scratch.UnmountTop(p.Path, p.Path); err != nil {
			x.stop(err)
		}
	}
}

// unmounts calls unmount for a directory that is mounted, and then for one that is not.
func (x *exam) unmounts(ctx context.Context, v vol) {
	x.undoes(ctx, "unmount", decide.OpUnmount, v.dir)
	if err := scratch.UnmountBelow(v.dir); err != nil {
		x.stop(err)
	}
	x.leftFiles(v)
	x.undoAgain(ctx, "unmount-again", decide.OpUnmount, v.dir)
}

// undoes calls an undo operation for what is mounted. Hosts repeat it until the directory can be
// removed, so it may unmount one mount at a time.
func (x *exam) undoes(ctx context.Context, name string, op decide.Operation, dir string) {
	const advice = "unmount what the mount table has at the directory, and answer Failure if that cannot be done"
	c, calls := x.undoAll(ctx, op, dir)
	left := within(c.after, dir)
	switch {
	case len(left) > 0 && c.ok():
		x.fail(name, kubernetes(), advice, "%s answers Success, and something is still mounted at %s: Kubernetes "+
			"never gets rid of the directory, volplane unmounts it itself", op, left[0].Path)
	case len(left) > 0:
		x.fail(name, both(), advice, "something is still mounted at %s: %s", left[0].Path, c.why())
	case !c.ok() && !c.unsupported():
		x.undoneButFails(ctx, name, op, dir, c)
	case op == decide.OpUnmount && c.ok() && !c.byHost && c.ReadByKubernetes() != decide.Success:
		// Kubernetes takes it for a failure and tries again, as long as there is a directory.
		if _, err := os.Lstat(dir); err == nil {
			x.undoAt(ctx, op, dir)
		}
		x.pass(name, "nothing is mounted any more")
	case calls > 1:
		x.warn(name, "unmount all of it in one call", "it takes %d calls until nothing is mounted any more", calls)
	default:
		x.pass(name, "nothing is mounted any more")
	}
}

// undoAll calls an undo operation as long as it unmounts something, and returns the last call and the
// number of calls.
func (x *exam) undoAll(ctx context.Context, op decide.Operation, dir string) (c call, calls int) {
	c = x.undoAt(ctx, op, dir)
	for calls = 1; ; calls++ {
		left := len(within(c.after, dir))
		if left == 0 {
			return c, calls
		}
		if c = x.undoAt(ctx, op, dir); len(within(c.after, dir)) >= left {
			return c, calls + 1
		}
	}
}

// undoneButFails judges an undo operation that fails, though nothing is mounted any more.
// Kubernetes calls unmount again as long as the directory is there.
func (x *exam) undoneButFails(ctx context.Context, name string, op decide.Operation, dir string, c call) {
	const advice = "answer Success when nothing is mounted"
	if _, err := os.Lstat(dir); err == nil && op == decide.OpUnmount {
		if again := x.undoAt(ctx, op, dir); !again.ok() && !again.unsupported() {
			x.fail(name, kubernetes(), advice, "nothing is mounted any more, though %s: Kubernetes repeats it for ever",
				again.why())
			return
		}
	}
	x.warn(name, advice, "nothing is mounted any more, though %s", c.why())
}

// undoAgain calls an undo operation for a directory at which nothing is mounted. A host does so if
// it was interrupted before it could remove the directory.
func (x *exam) undoAgain(ctx context.Context, name string, op decide.Operation, dir string) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		x.stop(err)
	}
	c := x.undoAt(ctx, op, dir)
	x.unjudged()
	if err := scratch.RemoveTree(dir); err != nil {
		x.stop(err)
	}
	x.wrongIf(!c.ok() && !c.unsupported(), "where nothing is mounted any more, "+c.why(),
		question{name, nil, "answer Success when nothing is mounted", "what is undone already is a success"})
}

// leftFiles checks which files are in and beside the directory when nothing is mounted any more.
func (x *exam) leftFiles(v vol) {
	const (
		name   = "leftover-files"
		advice = "keep files in a directory of the driver's own, below /run"
	)
	if entries, err := os.ReadDir(v.dir); err == nil && len(entries) > 0 {
		x.fail(name, kubernetes(), advice, "unmount leaves %s, so that Kubernetes cannot remove the directory",
			filepath.Join(v.dir, entries[0].Name()))
		return
	}
	entries, err := os.ReadDir(filepath.Dir(v.dir))
	if err != nil {
		x.stop(err)
	}
	var left []string
	for _, e := range entries {
		if e.Name() != filepath.Base(v.dir) {
			left = append(left, filepath.Join(filepath.Dir(v.dir), e.Name()))
		}
	}
	x.wrongIf(len(left) > 0, "unmount leaves "+strings.Join(left, ", ")+" beside the directory",
		question{name, nil, advice, "no file is left"})
}

const marker = "volplane-doctor"

// keepsData mounts a volume again: a file that survived one unmount must also survive two.
func (x *exam) keepsData(ctx context.Context, v vol) {
	read := func() bool {
		return x.through(v, func(dir string) error {
			_, err := os.Stat(filepath.Join(dir, marker))
			return err
		}) == nil
	}
	if !x.up(ctx, v) {
		x.fail("mount-anew", both(), "let unmount leave everything as it was before mount",
			"what was mounted and unmounted cannot be mounted again")
		return
	}
	x.pass("mount-anew", "what was unmounted can be mounted again")
	err := x.through(v, func(dir string) error { return os.WriteFile(filepath.Join(dir, marker), []byte(marker), 0o600) })
	x.undoAll(ctx, decide.OpUnmount, v.dir)
	if err != nil || !x.up(ctx, v) {
		x.down(ctx, v)
		x.warn("data", "mount the volume so that root can write to it", "nothing can be written to the volume: %v",
			cmp.Or(err, errNotAgain))
		return
	}
	kept := read()
	x.undoAll(ctx, decide.OpUnmount, v.dir)
	// A host that was interrupted calls it again, if the directory is still there.
	if _, err := os.Lstat(v.dir); err == nil {
		x.unmount(ctx, v)
	}
	if x.up(ctx, v); kept && !read() {
		x.fail("data", both(), "delete nothing in unmount, and least of all where nothing is mounted",
			"a second unmount destroys what was written")
	} else if kept {
		x.pass("data", "what was written is there after the volume was unmounted, also twice")
	} else {
		x.pass("data", "what was written is lost after the unmount")
	}
	if read() {
		_ = os.Remove(filepath.Join(v.dir, marker))
	}
	x.down(ctx, v)
}

// errNotAgain says that a volume cannot be mounted after it was written to.
var errNotAgain = errors.New("it cannot be mounted again")

// inUse unmounts a volume while a file of it is open.
func (x *exam) inUse(ctx context.Context, v vol) {
	const name = "unmount-in-use"
	if !x.up(ctx, v) {
		return
	}
	file := filepath.Join(v.dir, marker)
	written := os.WriteFile(file, []byte(marker), 0o600)
	used, err := os.Open(v.dir)
	if err != nil {
		x.stop(err)
		return
	}
	c := x.unmount(ctx, v)
	_ = used.Close()
	_, gone := os.Lstat(file)
	switch left := len(within(c.after, v.dir)) > 0; {
	case left && written == nil && gone != nil:
		x.fail(name, both(), "delete nothing in unmount but an empty directory, by rmdir",
			"unmount of what is in use deletes what was written to it")
	case c.ok() && left:
		x.warn(name, "check the exit code of umount, and answer Failure",
			"unmount of what is in use answers Success, and it is still mounted: hosts notice that, and try again")
	case !left:
		x.warn(name, "use umount without -l and -f",
			"a volume in use is unmounted: its users continue unnoticed")
	default:
		x.pass(name, "what is in use stays")
	}
	if gone == nil && written == nil {
		_ = os.Remove(file)
	}
	x.down(ctx, v)
}

// readOnly mounts a volume read-only.
func (x *exam) readOnly(ctx context.Context, v vol) {
	v.ReadOnly = true
	if !x.up(ctx, v) {
		x.warn("read-only", "mount with the option ro then", "a volume cannot be mounted with kubernetes.io/readwrite ro")
		x.down(ctx, v)
		return
	}
	err := os.WriteFile(filepath.Join(v.dir, marker), nil, 0o600)
	if err == nil {
		_ = os.Remove(filepath.Join(v.dir, marker))
	}
	x.wrongIf(err == nil, "kubernetes.io/readwrite is ro, and the volume can be written to",
		question{"read-only", nil, "mount with the option ro then", "a read-only volume cannot be written to"})
	x.down(ctx, v)
}

// arguments calls mount with the variants of JSON that users may cause.
func (x *exam) arguments(ctx context.Context, v vol) {
	odd := v
	odd.Options = map[string]string{"volplane.dev/doctor": x.odd("a  b"), "volplane.dev/doctor-lines": "a\nb\tc"}
	for key, value := range v.Options {
		odd.Options[key] = value
	}
	if !x.ownSecrets {
		odd.Secrets = map[string]string{userKey: x.odd(user), "password": x.odd(password)}
	}
	c := x.mount(ctx, odd, x.json(decide.OpMount, odd))
	// The form of its answer is that of a volume that has such values only.
	x.unjudged()
	q := question{"odd-characters", nil, quoteArguments, "blanks and what means something to a shell are only text"}
	reason := ""
	if !c.ok() {
		reason = c.why()
	} else if !c.byHost && c.ReadByKubernetes() != decide.Success {
		reason = "mount prints more than its answer: " + c.Quote(c.hide)
	}
	if _, err := os.Lstat(x.canary); err == nil {
		reason = "the driver executes what is in the JSON as a command of the shell"
		q.breaks, q.advice = both(), "never give a value to eval or sh -c; with jq use @sh"
		_ = os.Remove(x.canary)
	}
	x.answer(q, reason)
	x.down(ctx, v)
	v.FSGroup = nil
	c = x.mount(ctx, v, x.json(decide.OpMount, v))
	x.wrongIf(!c.ok(), c.why(),
		question{"little-json", both(), "do without what the JSON does not have", "what is optional may be absent"})
	x.down(ctx, v)
}

// elsewhere mounts a volume below a directory of another depth.
func (x *exam) elsewhere(ctx context.Context) {
	v := x.volumeBelow(filepath.Join(x.root, "another", "depth"), "pv1", 1)
	v.deviceDir = x.volume("pv1", 1).deviceDir
	c := x.mount(ctx, v, x.json(decide.OpMount, v))
	x.wrongIf(!c.ok() || len(within(c.after, v.dir)) == 0,
		"it does not mount below a root directory of another depth than /var/lib/kubelet has: "+c.why(), question{
			"path-depth", nil, "take what is needed from the JSON, not from the path",
			"the depth of the path is not its business",
		})
	x.down(ctx, v)
}

// failing makes mount fail: there is a file at the path of the directory. Hosts see mounts that
// fail for other reasons.
func (x *exam) failing(ctx context.Context) {
	const name = "failed-mount"
	v := x.volume("pv3", 3)
	err := os.MkdirAll(filepath.Dir(v.dir), 0o750)
	if err == nil {
		err = os.WriteFile(v.dir, []byte(marker), 0o600)
	}
	if err != nil {
		x.stop(err)
	}
	c := x.call(ctx, decide.OpMount, v.dir, x.json(decide.OpMount, v))
	x.unjudged()
	left := minus(within(c.after, x.root), within(c.before, x.root))
	switch {
	case c.unsupported():
		x.pass(name, "mount is left to the host")
	case c.ok():
		x.warn(name, "check the exit code of each program",
			"mount answers Success where there is a file in the place of the directory")
	case len(left) > 0 && left[0].Path == v.dir:
		x.fail(name, kubernetes(), takeAway, "mount fails and leaves %s mounted: Kubernetes takes it for the volume when "+
			"it tries again", left[0].Path)
	case len(left) > 0:
		x.fail(name, both(), takeAway, "mount fails and leaves %s mounted: no host finds it there", left[0].Path)
	case c.err != nil:
		x.warn(name, `print {"status":"Failure","message":"..."} and exit with 1`,
			"a mount that fails should say why: %s", c.why())
	default:
		x.pass(name, "a mount that fails says so and leaves nothing: %s", c.why())
	}
	if err := scratch.UnmountBelow(v.dir); err != nil {
		x.stop(err)
	}
	if err := scratch.RemoveTree(v.dir); err != nil {
		x.stop(err)
	}
}
