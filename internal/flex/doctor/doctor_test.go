package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/workshop/finding"
)

// parts are the operations of a driver that a test replaces.
type parts map[string]string

// sound is a driver with nothing to complain about: a small tmpfs at each
// directory.
func sound() parts {
	return parts{
		"before": "",
		"init":   `say '{"status":"Success","capabilities":{"attach":false}}'`,
		"mount": `mountpoint -q "$2" && say '{"status":"Success"}'
	case $3 in *readwrite*ro\"*) how=ro ;; *) how=rw ;; esac
	mount -t tmpfs -o "size=1m,$how" doctor-test "$2" 2>/dev/null || fail "cannot mount"
	say '{"status":"Success"}'`,
		"unmount": `if mountpoint -q "$2"; then umount "$2" 2>/dev/null || fail "cannot unmount"; fi
	say '{"status":"Success"}'`,
		"*": `echo '{"status":"Not supported"}'; exit 1`,
	}
}

func (p parts) script() string {
	return fmt.Sprintf(`#!/bin/sh
say() { echo "$1"; exit 0; }
fail() { echo "{\"status\":\"Failure\",\"message\":\"$1\"}"; exit 1; }
%s
case $1 in
init) %s ;;
mount) %s ;;
unmount) %s ;;
*) %s ;;
esac
`, p["before"], p["init"], p["mount"], p["unmount"], p["*"])
}

// hanging is the limit of calls of a driver that hangs.
const hanging = 3 * time.Second

// examined runs the doctor over a script.
func examined(t *testing.T, script string, change func(*Doctor)) (Report, *Doctor, error) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "example.com~test", "test")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(script), 0o755),
		os.Mkdir(filepath.Join(dir, "scratch"), 0o700)); err != nil {
		t.Fatal(err)
	}
	d := &Doctor{
		Path: path, Name: decide.Name{Vendor: "example.com", Driver: "test"}, Scratch: filepath.Join(dir, "scratch"),
		Limit: time.Minute,
	}
	if strings.Contains(script, "sleep 600") {
		d.Limit = hanging
	}
	if change != nil {
		change(d)
	}
	r, err := d.Run(t.Context())
	nothingLeft(t, d)
	namesPersons(t, r)
	documented(t, r)
	return r, d, err
}

// nothingLeft: whatever happened, everything is removed.
func nothingLeft(t *testing.T, d *Doctor) {
	t.Helper()
	if left, err := os.ReadDir(d.Scratch); err != nil || len(left) > 0 {
		t.Errorf("left in the scratch place: %v, %v", left, err)
	}
	if mounts, err := mount.Below(d.Scratch); err != nil || len(mounts) > 0 {
		t.Errorf("still mounted: %v, %v", mounts, err)
	}
}

// TestSoundDriver: all checks of a driver without attach, and all are passed.
func TestSoundDriver(t *testing.T) {
	t.Parallel()
	r, _, err := examined(t, sound().script(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Level != finding.Pass || r.Seconds > 20 || r.Calls < 20 || len(r.Hash) != 16 {
		t.Errorf("%+v", r)
	}
	golden.Equal(t, "testdata/sound.txt", listed(r))
}

func listed(r Report) string {
	var out strings.Builder
	for _, f := range r.Findings {
		if f.Check == "init-time" {
			f.Message = "..."
		}
		if f.Next != "" {
			f.Message += "; " + f.Next
		}
		fmt.Fprintf(&out, "%-4s %s: %s\n", f.Level, f.Check, f.Message)
	}
	return out.String()
}

// TestAnySpellingOfKeys: the keys of an answer may be spelled in any case.
func TestAnySpellingOfKeys(t *testing.T) {
	t.Parallel()
	r, _, err := examined(t,
		strings.ReplaceAll(strings.ReplaceAll(sound().script(), `"status"`, `"Status"`), `\"status\"`, `\"Status\"`), nil)
	if err != nil || r.Level != finding.Pass {
		t.Errorf("%v\n%s", err, listed(r))
	}
}

// fault is a part of a driver that is wrong, and what finds that.
type fault struct {
	part, text string
	check      string
	level      finding.Level
}

// success is the answer of a call that has nothing else to report.
const success = `say '{"status":"Success"}'`

// answerFaults are those of a driver without attach that answers what it must not.
func answerFaults() map[string]fault {
	return map[string]fault{
		"no answer to init": {"init", `exit 0`, "init", finding.Fail},
		"init that fails":   {"init", `fail "no tool"`, "init", finding.Fail},
		"capabilities null": {
			"init", `say '{"status":"Success","capabilities":null}'`, "init-capabilities", finding.Fail,
		},
		"no capabilities": {"init", `say '{"status":"Success"}'`, "init-capabilities", finding.Warn},
		"unknown capability": {
			"init", `say '{"status":"Success","capabilities":{"attach":false,"Attaching":true}}'`, "init-capabilities",
			finding.Warn,
		},
		"slow init": {
			"init", `sleep 0.3; say '{"status":"Success","capabilities":{"attach":false}}'`, "init-time", finding.Warn,
		},
		"init that works once":     {"init", `n=$(cat ${0%/*}/n 2>/dev/null); echo "1$n" >${0%/*}/n; [ -z "$n" ] || fail again; say '{"status":"Success","capabilities":{"attach":false}}'`, "init-repeatable", finding.Fail},
		"noise on standard error":  {"before", `echo "trace" >&2`, "standard-error", finding.Fail},
		"noise on standard output": {"before", `echo "trace"`, "one-answer", finding.Fail},
		"two answers":              {"before", `echo '{"status":"Success"}'`, "one-answer", finding.Fail},
		"another spelling": {
			"unmount", `umount "$2" 2>/dev/null; say '{"status":"success"}'`, "status", finding.Fail,
		},
		"success with code 1": {
			"unmount", `umount "$2" 2>/dev/null; echo '{"status":"Success"}'; exit 1`, "exit-code", finding.Fail,
		},
		"failure with code 0": {
			"before", `[ "$1" != unmount ] || umount "$2" 2>/dev/null || say '{"status":"Failure"}'`, "exit-code", finding.Warn,
		},
		"code 2": {
			"before", `[ "$1" != unmount ] || umount "$2" 2>/dev/null || { echo '{"status":"Failure"}'; exit 2; }`,
			"exit-code-1", finding.Warn,
		},
		"unknown with code 2":        {"*", `echo '{"status":"Not supported"}'; exit 2`, "unknown-operation", finding.Warn},
		"silence to what is unknown": {"*", `exit 1`, "unknown-operation", finding.Warn},
		"success of what is unknown": {"*", success, "unknown-operation", finding.Warn},
		"failure of what is unknown": {"*", `fail "usage"`, "unknown-operation", finding.Warn},
		"no object":                  {"init", `echo 'Usage: test init'; exit 1`, "init", finding.Fail},
		"noise with a mount": {
			"mount", `mountpoint -q "$2" || mount -t tmpfs x "$2" 2>/dev/null || fail no; echo mounted >&2; ` + success,
			"standard-error", finding.Warn,
		},
		"noise with an unmount": {
			"unmount", `umount "$2" 2>/dev/null && echo unmounted >&2; ` + success, "standard-error", finding.Warn,
		},
		"noise with each unmount": {
			"unmount", `umount "$2" 2>/dev/null; echo unmounted >&2; ` + success, "standard-error", finding.Fail,
		},
	}
}

// mountFaults are those of one that does not do what it says.
func mountFaults() map[string]fault {
	return map[string]fault{
		"mount that fails": {"mount", `fail "no server"`, "mount", finding.Fail},
		"mount of nothing": {"mount", success, "mount", finding.Warn},
		"mount elsewhere": {
			"mount", `mkdir -p "$2/in"; mount -t tmpfs x "$2/in"; ` + success, "mount", finding.Warn,
		},
		"mount beside": {
			"mount", `mkdir -p "$2-too"; mount -t tmpfs x "$2-too"; mount -t tmpfs x "$2"; ` + success, "mount-place",
			finding.Warn,
		},
		"mount that pods do not see": {
			"mount",
			`mountpoint -q "$2" || { mount -t tmpfs x "$2" 2>/dev/null || fail no; mount --make-unbindable "$2"; }; ` + success,
			"seen-by-pods", finding.Fail,
		},
		"mounts on top of each other": {
			"mount", `mount -t tmpfs x "$2" && mount -t tmpfs x "$2"; ` + success, "mount", finding.Warn,
		},
		"directory becomes a link": {"mount", `rmdir "$2"; ln -s /etc "$2"; ` + success, "mount", finding.Warn},
		"second mount on the first": {
			"mount", `mount -t tmpfs x "$2" 2>/dev/null || fail no; ` + success, "mount-again", finding.Warn,
		},
		"second mount refused": {
			"mount", `mountpoint -q "$2" && fail "mounted"; mount -t tmpfs x "$2" 2>/dev/null || fail no; ` + success,
			"mount-again", finding.Warn,
		},
		"unmount that does nothing":   {"unmount", success, "unmount", finding.Fail},
		"unmount that refuses":        {"unmount", `fail "never"`, "unmount", finding.Fail},
		"unmount that fails after it": {"unmount", `umount "$2" 2>/dev/null; fail "odd"`, "unmount", finding.Fail},
		"unmount that fails once": {
			"unmount", `umount "$2" 2>/dev/null && fail "odd"; ` + success, "unmount", finding.Warn,
		},
		"one mount at a time": {
			"mount", `mountpoint -q "$2" || { mount -t tmpfs x "$2" 2>/dev/null || fail no; mkdir "$2/in"; mount -t tmpfs x "$2/in"; }; ` +
				success + ` ;; unmount) umount "$2/in" 2>/dev/null || umount "$2" 2>/dev/null; ` + success, "unmount", finding.Warn,
		},
		"unmount that deletes": {
			"before", `d=${0%/*}/data; case $1 in
	mount) mountpoint -q "$2" || { mkdir -p "$d"; mount --bind "$d" "$2" 2>/dev/null || fail no; }; ` + success + ` ;;
	unmount) umount "$2" 2>/dev/null; rm -rf "$2" 2>/dev/null; ` + success + ` ;;
	esac`, "unmount-in-use", finding.Fail,
		},
		"lazy unmount": {
			"unmount", `mountpoint -q "$2" && umount -l "$2"; ` + success, "unmount-in-use", finding.Warn,
		},
		"unmount that hides failure": {
			"unmount", `mountpoint -q "$2" && umount "$2" 2>/dev/null; ` + success, "unmount-in-use", finding.Warn,
		},
		"no status": {"unmount", `umount "$2" 2>/dev/null; echo '{"message":"done"}'; exit 0`, "status", finding.Fail},
		"second unmount refused": {
			"unmount", `umount "$2" 2>/dev/null || fail "not mounted"; ` + success, "unmount-again", finding.Warn,
		},
		"files beside": {
			"mount", `mountpoint -q "$2" || { : >"$2_passwd"; mount -t tmpfs x "$2" 2>/dev/null || fail no; }; ` + success,
			"leftover-files", finding.Warn,
		},
		"files in it": {
			"unmount", `mountpoint -q "$2" && umount "$2" && : >"$2/left"; ` + success, "leftover-files", finding.Fail,
		},
		"read-only is not seen": {
			"mount", `mountpoint -q "$2" || mount -t tmpfs x "$2" 2>/dev/null || fail no; ` + success, "read-only", finding.Warn,
		},
		"read-only cannot be mounted": {
			"before", `case $1$3 in mount*readwrite*ro\"*) fail "ro" ;; esac`, "read-only", finding.Warn,
		},
		"second unmount deletes": {"before", `d=${0%/*}/data; case $1 in
	mount) mountpoint -q "$2" || { mkdir -p "$d"; mount --bind "$d" "$2" 2>/dev/null || fail no; }; ` + success + ` ;;
	unmount) if mountpoint -q "$2"; then umount "$2"; else rm -rf "$d"; fi; ` + success + ` ;;
	esac`, "data", finding.Fail},
	}
}

// callFaults are those of one that does not bear how it is called.
func callFaults() map[string]fault {
	return map[string]fault{
		"unmounts others too": {
			"unmount", `for d in "${2%/pods/*}"/pods/*/volumes/*/*; do umount "$d" 2>/dev/null; done; ` + success, "two-pods",
			finding.Fail,
		},
		"one at a time": {"mount", `mountpoint -q "$2" && ` + success + `; mkdir "${0%/*}/lock" 2>/dev/null || fail "busy"; sleep 0.5; mount -t tmpfs x "$2" 2>/dev/null; e=$?; rmdir "${0%/*}/lock"; [ $e = 0 ] || fail no; ` + success, "two-at-once", finding.Warn},
		"one at a time, and silent": {
			"mount", `mountpoint -q "$2" && ` + success + `; mkdir "${0%/*}/lock" 2>/dev/null || ` + success +
				`; sleep 0.5; mount -t tmpfs x "$2" 2>/dev/null; e=$?; rmdir "${0%/*}/lock"; [ $e = 0 ] || fail no; ` + success,
			"two-at-once", finding.Fail,
		},
		"arguments of the shell": {
			"before", `[ "$1" != mount ] || { set -- $*; [ $# = 3 ] || fail "arguments"; }`, "odd-characters", finding.Warn,
		},
		"eval": {
			"before", `[ "$1" != mount ] || eval "x=\"$(echo "$3" | sed 's/"/ /g')\"" 2>/dev/null`, "odd-characters",
			finding.Fail,
		},
		"a group is needed": {
			"before", `case $1$3 in mount*4321*) ;; mount*) fail "group" ;; esac`, "little-json", finding.Fail,
		},
		"path by components": {
			"before", `case $1$2 in mount*/another/depth/*) fail "uid" ;; esac`, "path-depth", finding.Warn,
		},
		"fails and leaves a mount": {
			"before", `[ "$1" != mount ] || [ ! -f "$2" ] || { mkdir -p "$2.d"; mount -t tmpfs x "$2.d"; fail "no"; }`,
			"failed-mount", finding.Fail,
		},
		"fails and is mounted": {
			"before", `[ "$1" != mount ] || [ ! -f "$2" ] || { mount --bind "$2" "$2"; fail "no"; }`, "failed-mount",
			finding.Fail,
		},
		"success on a file": {"before", `[ "$1" != mount ] || [ ! -f "$2" ] || ` + success, "failed-mount", finding.Warn},
		"secret in the message": {
			"before", `[ "$1" != mount ] || [ ! -f "$2" ] || fail "$(echo "$3" | sed 's/.*secret.password":"//; s/".*//')"`,
			"secrets", finding.Fail,
		},
		"a daemon on the pipe": {"before", `[ "$1" != mount ] || sleep 5 &`, "output-kept-open", finding.Fail},
		"a daemon that stays": {
			"before", `[ "$1" != mount ] || sleep 600 >/dev/null 2>&1 </dev/null &`, "leftover-processes", finding.Warn,
		},
		"a call that hangs": {"unmount", `sleep 600`, "time-limit", finding.Fail},
	}
}

// TestFaults: each fault is found by the check that is meant for it.
func TestFaults(t *testing.T) {
	t.Parallel()
	all := answerFaults()
	maps.Copy(all, mountFaults())
	maps.Copy(all, callFaults())
	findsAll(t, all, sound, parts.script, nil)
}

// findsAll has a driver examined with each of some faults.
func findsAll(
	t *testing.T, faults map[string]fault, sound func() parts, script func(parts) string, change func(*Doctor),
) {
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		f := faults[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := sound()
			p[f.part] = f.text
			r, _, err := examined(t, script(p), change)
			if err != nil {
				t.Error(err)
			}
			found := slices.ContainsFunc(r.Findings,
				func(g finding.Finding) bool { return g.Check == f.check && g.Level == f.level && g.Next != "" })
			if !found || r.Level != finding.Worst(r.Findings) {
				t.Errorf("no %s of %s in:\n%s", f.level, f.check, listed(r))
			}
			if want := worksWith(name, f); r.Works == nil || *r.Works != want {
				t.Errorf("works %+v, want %+v:\n%s", r.Works, want, listed(r))
			}
			if strings.Contains(listed(r), "pa55word-of-nobody") {
				t.Errorf("a secret is shown:\n%s", listed(r))
			}
		})
	}
}

// TestExamples: the drivers that are examples have nothing to complain about.
func TestExamples(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Doctor{
		"scratch": {},
		"lofs":    {FSType: "ext4", Options: map[string]string{"file": "doctor", "size": "16Mi"}},
	} {
		example, err := filepath.Abs("../../../examples/flex/" + name + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		// Nothing of lofs is kept in its usual place.
		pool := t.TempDir()
		script := "#!/bin/sh\nLOFS_POOL=" + pool + " exec " + example + " \"$@\"\n"
		r, _, err := examined(t, script, func(x *Doctor) { x.FSType, x.Options, x.Limit = d.FSType, d.Options, time.Minute })
		if err != nil || r.Level != finding.Pass {
			t.Errorf("%s: %v\n%s", name, err, listed(r))
		}
	}
}

// TestInterrupted: everything is removed even if a program is interrupted that ends with
// what Run returns.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	a := startAnother(t)
	if err := a.end(os.Interrupt); err != nil {
		t.Error(err)
	}
	if !strings.Contains(a.out.String(), "context canceled") || !strings.Contains(a.out.String(), "init-time") {
		t.Errorf("it said %s", a.out.String())
	}
	nothingLeft(t, &Doctor{Scratch: a.scratch})
	a.daemonEnded()
}

// TestMain is also the program that other tests interrupt and kill.
func TestMain(m *testing.M) {
	path := os.Getenv("EXAMINE")
	if path == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	r, err := (&Doctor{
		Path: path, Name: decide.Name{Driver: "test"}, Scratch: os.Getenv("SCRATCH"), Limit: time.Minute,
	}).Run(ctx)
	cancel()
	fmt.Println(listed(r), err)
}
