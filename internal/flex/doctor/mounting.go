package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// Advice that several findings share.
const (
	giveOptions    = "if the volume needs them, give options with --option, --fstype and --secret-file"
	lookFirst      = "look at the mount table first, and answer Success when it is mounted"
	quoteArguments = `use "$2" and "$@", never $2 or $*`
	readJSON       = "read the JSON with a program for it, as jq"
)

// byHand returns a shell command that calls the driver as the examination did.
func (x *exam) byHand(call string) string {
	return "run it by hand: " + filepath.Base(x.path) + " " + call
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
	c := x.mount(ctx, v, x.json(decide.OpMount, v))
	if !c.ok() {
		x.fail("mount", giveOptions, "%s", c.why())
		return false
	}
	info, err := os.Lstat(v.dir)
	here := at(c.after, v.dir)
	switch {
	case err == nil && info.Mode()&os.ModeSymlink != 0:
		x.fail("mount", "mount the volume at the directory itself", "the directory was replaced by a symbolic link")
		return false
	case len(here) == 0 && len(within(c.added(), v.dir)) == 0:
		x.warn("mount", "mount the volume at the directory, by bind if need be",
			"it answers Success and nothing is mounted at the directory: a host cannot see whether it is")
		return false
	case len(here) == 0:
		x.fail("mount", "mount the volume at the directory itself", "nothing is mounted at the directory but at %s",
			within(c.added(), v.dir)[0].path)
	case len(here) > 1:
		x.fail("mount", "mount once", "%d mounts lie on top of each other", len(here))
	default:
		x.pass("mount", "%s is mounted", here[0].source)
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
		reason = "it mounts something beside the directory: " + p.path
	}
	x.answer(question{
		"mount-place", decide.Warn, "mount nowhere else, or in a directory of the driver's own",
		"it mounts nothing beside the directory",
	}, reason)
}

// mountAgain calls mount for a volume that is mounted (F-012).
func (x *exam) mountAgain(ctx context.Context, v vol) {
	before := at(x.table(), v.dir)
	c := x.mount(ctx, v, x.json(decide.OpMount, v))
	switch after := at(c.after, v.dir); {
	case len(after) > len(before):
		x.fail("mount-again", lookFirst, "a second mount lies on top of the first")
	case len(after) < len(before):
		x.fail("mount-again", lookFirst, "a second mount takes the first away")
	case !c.ok():
		x.warn("mount-again", lookFirst, "what is mounted should be a success: %s", c.why())
	default:
		x.pass("mount-again", "what is mounted stays as it is")
	}
}

// unmounts calls unmount for a directory that is mounted, then not mounted, and then does not
// exist.
func (x *exam) unmounts(ctx context.Context, v vol) {
	c := x.unmount(ctx, v)
	left := within(c.after, v.dir)
	switch {
	case len(left) > 0:
		x.fail("unmount", "unmount what the mount table has at the directory, and answer Failure if that cannot be done",
			"something is still mounted at %s: %s", left[0].path, c.why())
	case !c.ok():
		x.warn("unmount", "answer Success when nothing is mounted", "nothing is mounted any more, though %s", c.why())
	default:
		x.pass("unmount", "nothing is mounted any more")
	}
	if err := x.unmountBelow(v.dir); err != nil {
		x.stop(err)
	}
	x.leftFiles(v)
	if err := os.MkdirAll(v.dir, 0o750); err != nil {
		x.stop(err)
	}
	x.undoTwice(ctx, "unmount-again", decide.OpUnmount, v.dir)
}

// undoTwice calls an undo operation for what is undone already, and for a directory that does not
// exist.
func (x *exam) undoTwice(ctx context.Context, name string, op decide.Operation, dir string) {
	var wrong []string
	if c := x.undoAt(ctx, op, dir); !c.ok() && !c.unsupported() {
		wrong = append(wrong, "where nothing is mounted any more, "+c.why())
	}
	if err := removeTree(dir); err != nil {
		x.stop(err)
	}
	if c := x.undoAt(ctx, op, dir); !c.ok() && !c.unsupported() {
		wrong = append(wrong, "where the directory is gone, "+c.why())
	}
	x.answer(question{
		name, decide.Warn, "answer Success when nothing is mounted, whether the directory is there or not",
		"what is undone already is a success",
	}, strings.Join(wrong, "; "))
}

// leftFiles checks which files are beside and in the directory when nothing is mounted any more.
func (x *exam) leftFiles(v vol) {
	var left []string
	if entries, err := os.ReadDir(v.dir); err == nil && len(entries) > 0 {
		left = append(left, filepath.Join(v.dir, entries[0].Name()))
	}
	entries, err := os.ReadDir(filepath.Dir(v.dir))
	if err != nil {
		x.stop(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(v.dir) {
			left = append(left, filepath.Join(filepath.Dir(v.dir), e.Name()))
		}
	}
	reason := ""
	if len(left) > 0 {
		reason = "unmount leaves " + strings.Join(left, ", ") + ": a host cannot remove the directory"
	}
	x.answer(question{
		"leftover-files", decide.Fail, "keep files in a directory of the driver's own, below /run", "no file is left",
	}, reason)
}

const marker = "volplane-doctor"

// keepsData mounts a volume anew: a file that survived one unmount must also survive two.
func (x *exam) keepsData(ctx context.Context, v vol) {
	read := func() bool {
		return x.through(v, func(dir string) error {
			_, err := os.Stat(filepath.Join(dir, marker))
			return err
		}) == nil
	}
	if !x.up(ctx, v) {
		x.fail("mount-anew", "let unmount leave everything as it was before mount",
			"what was mounted and unmounted cannot be mounted again")
		return
	}
	x.pass("mount-anew", "what was unmounted can be mounted again")
	err := x.through(v, func(dir string) error { return os.WriteFile(filepath.Join(dir, marker), []byte(marker), 0o600) })
	x.unmount(ctx, v)
	if err != nil || !x.up(ctx, v) {
		x.down(ctx, v)
		x.warn("data", "mount the volume so that root can write to it", "nothing can be written to the volume: %v", err)
		return
	}
	kept := read()
	x.unmount(ctx, v)
	x.unmount(ctx, v)
	if x.up(ctx, v); kept && !read() {
		x.fail("data", "delete nothing in unmount, and least of all where nothing is mounted",
			"a second unmount destroys what was written")
	} else if kept {
		x.pass("data", "what was written is there after the volume was unmounted, also twice")
	} else {
		x.pass("data", "what was written goes with the unmount")
	}
	if read() {
		_ = os.Remove(filepath.Join(v.dir, marker))
	}
	x.down(ctx, v)
}

// inUse unmounts a volume while a file of it is open.
func (x *exam) inUse(ctx context.Context, v vol) {
	if !x.up(ctx, v) {
		return
	}
	used, err := os.Open(v.dir)
	if err != nil {
		x.stop(err)
		return
	}
	c := x.unmount(ctx, v)
	_ = used.Close()
	left := len(within(c.after, v.dir)) > 0
	switch {
	case c.ok() && left:
		x.fail("unmount-in-use", "look at the exit code of umount, and answer Failure",
			"unmount of what is in use answers Success, and it is still mounted")
	case !left:
		x.warn("unmount-in-use", "use umount without -l and -f",
			"what is in use is taken away: its users go on, and nobody sees that they do")
	default:
		x.pass("unmount-in-use", "what is in use stays")
	}
	x.down(ctx, v)
}

// twoPods mounts a volume for two Pods concurrently, and unmounts it for one.
func (x *exam) twoPods(ctx context.Context) {
	a, b := x.volume("pv1", 1), x.volume("pv1", 2)
	if !x.report.Capabilities.Attach {
		b = x.volume("pv2", 2)
	}
	argA, argB := x.json(decide.OpMount, a), x.json(decide.OpMount, b)
	if x.stopped() {
		return
	}
	begunA, begunB := x.beginMount(ctx, a, argA), x.beginMount(ctx, b, argB)
	first, second := x.mounted(a, begunA), x.mounted(b, begunB)
	table := x.table()
	one, two := len(within(table, a.dir)), len(within(table, b.dir))
	if !first.ok() || !second.ok() || one == 0 || two == 0 {
		why := "one of the two is not mounted"
		for _, c := range []call{first, second} {
			if !c.ok() {
				why = c.why()
			}
		}
		x.fail("two-at-once", "wait for a lock (flock -w) instead of giving up, and share no files between two calls",
			"two mounts at once, for two pods: %s", why)
		x.down(ctx, a)
		x.down(ctx, b)
		return
	}
	x.pass("two-at-once", "two mounts at once, for two pods, both succeed")
	x.unmount(ctx, a)
	table = x.table()
	switch {
	case len(within(table, b.dir)) < two:
		x.fail("two-pods", "unmount the one directory that is given", "what is unmounted for one pod is gone for another one")
	case len(within(table, a.dir)) > 0:
		x.fail("two-pods", "unmount the directory that is given, whoever else has the volume",
			"what is mounted for another pod stays mounted for the one")
	default:
		x.pass("two-pods", "each pod's volume is its own")
	}
	x.down(ctx, a)
	x.down(ctx, b)
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
	reason := ""
	if err == nil {
		reason = "kubernetes.io/readwrite is ro, and the volume can be written to"
	}
	x.answer(question{
		"read-only", decide.Warn, "mount with the option ro then", "a read-only volume cannot be written to",
	}, reason)
	x.down(ctx, v)
}

// arguments calls mount with the variants of JSON that other hosts and users may pass.
func (x *exam) arguments(ctx context.Context, v vol) {
	try := func(name, next, passed string, argument func() string) {
		c := x.mount(ctx, v, argument())
		reason := ""
		if !c.ok() {
			reason = c.why()
		}
		if _, err := os.Lstat(x.canary); err == nil {
			reason, next = "the driver executes what is in the JSON as a command of the shell",
				"never give a value to eval or sh -c; with jq use @sh"
			_ = os.Remove(x.canary)
		}
		x.answer(question{name, decide.Fail, next, passed}, reason)
		x.down(ctx, v)
	}
	try("odd-characters", quoteArguments, "blanks and what means something to a shell are only text", func() string {
		with := v
		with.Options = map[string]string{"volplane.dev/doctor": x.odd("a  b"), "volplane.dev/doctor-lines": "a\nb\tc"}
		for key, value := range v.Options {
			with.Options[key] = value
		}
		return x.json(decide.OpMount, with)
	})
	try("spaced-json", readJSON, "JSON may have blanks and more than one line",
		func() string { return spaced(x.json(decide.OpMount, v)) })
	try("little-json", "do without what the JSON does not have", "what is optional may be absent", func() string {
		with := v
		with.Pod, with.FSGroup = decide.PodInfo{}, nil
		return x.json(decide.OpMount, with)
	})
}

// elsewhere mounts a volume below a directory of another depth.
func (x *exam) elsewhere(ctx context.Context) {
	v := x.volumeBelow(filepath.Join(x.root, "another", "depth"), "pv1", 1)
	v.deviceDir = x.volume("pv1", 1).deviceDir
	reason := ""
	if c := x.mount(ctx, v, x.json(decide.OpMount, v)); !c.ok() || len(within(c.after, v.dir)) == 0 {
		reason = fmt.Sprintf("it does not mount below a root directory of another depth than /var/lib/kubelet has: %s",
			c.why())
	}
	x.answer(question{
		"path-depth", decide.Warn, "take what is needed from the JSON, not from the path",
		"the depth of the path is not its business",
	}, reason)
	x.down(ctx, v)
}

// failing makes mount fail: there is a file at the path of the directory.
func (x *exam) failing(ctx context.Context) {
	v := x.volume("pv3", 3)
	err := os.MkdirAll(filepath.Dir(v.dir), 0o750)
	if err == nil {
		err = os.WriteFile(v.dir, []byte(marker), 0o600)
	}
	if err != nil {
		x.stop(err)
	}
	c := x.call(ctx, decide.OpMount, v.dir, x.json(decide.OpMount, v))
	left := minus(within(c.after, x.root), within(c.before, x.root))
	switch {
	case c.unsupported():
		x.pass("failed-mount", "mount is left to the host")
	case c.ok():
		x.fail("failed-mount", "look at the exit code of each program",
			"mount answers Success where there is a file in the place of the directory")
	case len(left) > 0:
		x.fail("failed-mount", "take away what was mounted before answering Failure",
			"mount fails and leaves %s mounted: who tries again takes it for the volume", left[0].path)
	case c.err != nil:
		x.warn("failed-mount", `print {"status":"Failure","message":"..."} and exit with 1`,
			"a mount that fails should say why: %s", c.why())
	default:
		x.pass("failed-mount", "a mount that fails says so and leaves nothing: %s", c.why())
	}
	if err := x.unmountBelow(v.dir); err != nil {
		x.stop(err)
	}
	if err := removeTree(v.dir); err != nil {
		x.stop(err)
	}
}
