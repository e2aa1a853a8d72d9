package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/testkit/golden"
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
	return r, d, err
}

// nothingLeft: whatever happened, all is taken away.
func nothingLeft(t *testing.T, d *Doctor) {
	t.Helper()
	if left, err := os.ReadDir(d.Scratch); err != nil || len(left) > 0 {
		t.Errorf("left in the scratch place: %v, %v", left, err)
	}
	x := &exam{}
	if mounts := within(x.table(), d.Scratch); len(mounts) > 0 {
		t.Errorf("still mounted: %v", mounts)
	}
}

// TestSoundDriver: all checks of a driver without attach, and all are passed.
func TestSoundDriver(t *testing.T) {
	t.Parallel()
	r, _, err := examined(t, sound().script(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Level != decide.Pass || r.Seconds > 20 || r.Calls < 20 || len(r.Hash) != 16 {
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
	if err != nil || r.Level != decide.Pass {
		t.Errorf("%v\n%s", err, listed(r))
	}
}

// fault is a part of a driver that is wrong, and what finds that.
type fault struct {
	part, text string
	check      string
	level      decide.Level
}

// success is the answer of a call that has nothing to tell.
const success = `say '{"status":"Success"}'`

// answerFaults are those of a driver without attach that answers what it must not.
func answerFaults() map[string]fault {
	return map[string]fault{
		"no answer to init": {"init", `exit 0`, "init", decide.Fail},
		"init that fails":   {"init", `fail "no tool"`, "init", decide.Fail},
		"capabilities null": {
			"init", `say '{"status":"Success","capabilities":null}'`, "init-capabilities", decide.Fail,
		},
		"no capabilities": {"init", `say '{"status":"Success"}'`, "init-capabilities", decide.Warn},
		"unknown capability": {
			"init", `say '{"status":"Success","capabilities":{"attach":false,"Attaching":true}}'`, "init-capabilities",
			decide.Warn,
		},
		"slow init": {
			"init", `sleep 0.3; say '{"status":"Success","capabilities":{"attach":false}}'`, "init-time", decide.Warn,
		},
		"init that works once":     {"init", `n=$(cat ${0%/*}/n 2>/dev/null); echo "1$n" >${0%/*}/n; [ -z "$n" ] || fail again; say '{"status":"Success","capabilities":{"attach":false}}'`, "init-repeatable", decide.Fail},
		"noise on standard error":  {"before", `echo "trace" >&2`, "standard-error", decide.Fail},
		"noise on standard output": {"before", `echo "trace"`, "one-answer", decide.Fail},
		"two answers":              {"before", `echo '{"status":"Success"}'`, "one-answer", decide.Fail},
		"another spelling":         {"*", `echo '{"status":"Not Supported"}'; exit 1`, "status", decide.Fail},
		"success with code 1": {
			"unmount", `umount "$2" 2>/dev/null; echo '{"status":"Success"}'; exit 1`, "exit-code", decide.Fail,
		},
		"failure with code 0":         {"*", `echo '{"status":"Failure"}'; exit 0`, "exit-code", decide.Fail},
		"code 2":                      {"*", `echo '{"status":"Not supported"}'; exit 2`, "exit-code-1", decide.Warn},
		"silence to what is unknown":  {"*", `exit 1`, "unknown-operation", decide.Warn},
		"success of what is unknown":  {"*", success, "unknown-operation", decide.Fail},
		"attaching that does nothing": {"*", success, "other-operations", decide.Warn},
	}
}

// mountFaults are those of one that does not do what it says.
func mountFaults() map[string]fault {
	return map[string]fault{
		"mount that fails": {"mount", `fail "no server"`, "mount", decide.Fail},
		"mount of nothing": {"mount", success, "mount", decide.Warn},
		"mount elsewhere": {
			"mount", `mkdir -p "$2/in"; mount -t tmpfs x "$2/in"; ` + success, "mount", decide.Fail,
		},
		"mount beside": {
			"mount", `mkdir -p "$2-too"; mount -t tmpfs x "$2-too"; mount -t tmpfs x "$2"; ` + success, "mount-place",
			decide.Warn,
		},
		"mount that pods do not see": {
			"mount",
			`mountpoint -q "$2" || { mount -t tmpfs x "$2" 2>/dev/null || fail no; mount --make-unbindable "$2"; }; ` + success,
			"seen-by-pods", decide.Fail,
		},
		"mounts on top of each other": {
			"mount", `mount -t tmpfs x "$2" && mount -t tmpfs x "$2"; ` + success, "mount", decide.Fail,
		},
		"directory becomes a link": {"mount", `rmdir "$2"; ln -s /etc "$2"; ` + success, "mount", decide.Fail},
		"second mount on the first": {
			"mount", `mount -t tmpfs x "$2" 2>/dev/null || fail no; ` + success, "mount-again", decide.Fail,
		},
		"second mount refused": {
			"mount", `mountpoint -q "$2" && fail "mounted"; mount -t tmpfs x "$2" 2>/dev/null || fail no; ` + success,
			"mount-again", decide.Warn,
		},
		"unmount that does nothing":   {"unmount", success, "unmount", decide.Fail},
		"unmount that fails after it": {"unmount", `umount "$2" 2>/dev/null; fail "odd"`, "unmount", decide.Warn},
		"lazy unmount": {
			"unmount", `mountpoint -q "$2" && umount -l "$2"; ` + success, "unmount-in-use", decide.Warn,
		},
		"unmount that hides failure": {
			"unmount", `mountpoint -q "$2" && umount "$2" 2>/dev/null; ` + success, "unmount-in-use", decide.Fail,
		},
		"no status": {"*", `echo '{"message":"what?"}'; exit 1`, "status", decide.Fail},
		"second unmount refused": {
			"unmount", `umount "$2" 2>/dev/null || fail "not mounted"; ` + success, "unmount-again", decide.Warn,
		},
		"files beside": {
			"mount", `mountpoint -q "$2" || { : >"$2_passwd"; mount -t tmpfs x "$2" 2>/dev/null || fail no; }; ` + success,
			"leftover-files", decide.Fail,
		},
		"files in it": {
			"unmount", `mountpoint -q "$2" && umount "$2" && : >"$2/left"; ` + success, "leftover-files", decide.Fail,
		},
		"read-only is not seen": {
			"mount", `mountpoint -q "$2" || mount -t tmpfs x "$2" 2>/dev/null || fail no; ` + success, "read-only", decide.Warn,
		},
		"read-only cannot be mounted": {
			"before", `case $1$3 in mount*readwrite*ro\"*) fail "ro" ;; esac`, "read-only", decide.Warn,
		},
		"second unmount deletes": {"before", `d=${0%/*}/data; case $1 in
	mount) mountpoint -q "$2" || { mkdir -p "$d"; mount --bind "$d" "$2" 2>/dev/null || fail no; }; ` + success + ` ;;
	unmount) if mountpoint -q "$2"; then umount "$2"; else rm -rf "$d"; fi; ` + success + ` ;;
	esac`, "data", decide.Fail},
	}
}

// callFaults are those of one that does not bear how it is called.
func callFaults() map[string]fault {
	return map[string]fault{
		"unmounts others too": {
			"unmount", `for d in "${2%/pods/*}"/pods/*/volumes/*/*; do umount "$d" 2>/dev/null; done; ` + success, "two-pods",
			decide.Fail,
		},
		"one at a time": {"mount", `mountpoint -q "$2" && ` + success + `; mkdir "${0%/*}/lock" 2>/dev/null || fail "busy"; sleep 0.5; mount -t tmpfs x "$2" 2>/dev/null; e=$?; rmdir "${0%/*}/lock"; [ $e = 0 ] || fail no; ` + success, "two-at-once", decide.Fail},
		"arguments of the shell": {
			"before", `[ "$1" != mount ] || { set -- $*; [ $# = 3 ] || fail "arguments"; }`, "odd-characters", decide.Fail,
		},
		"eval": {
			"before", `[ "$1" != mount ] || eval "x=\"$(echo "$3" | sed 's/"/ /g')\"" 2>/dev/null`, "odd-characters",
			decide.Fail,
		},
		"JSON read by the letter": {
			"before", `case $1$3 in mount*'"kubernetes.io/readwrite":"'*) ;; mount*) fail "JSON" ;; esac`, "spaced-json",
			decide.Fail,
		},
		"a pod is needed": {
			"before", `case $1$3 in mount*pod1*|mount*pod2*|mount*pod3*) ;; mount*) fail "pod" ;; esac`, "little-json",
			decide.Fail,
		},
		"path by components": {
			"before", `case $1$2 in mount*/another/depth/*) fail "uid" ;; esac`, "path-depth", decide.Warn,
		},
		"fails and leaves a mount": {
			"before", `[ "$1" != mount ] || [ ! -f "$2" ] || { mkdir -p "$2.d"; mount -t tmpfs x "$2.d"; fail "no"; }`,
			"failed-mount", decide.Fail,
		},
		"success on a file": {"before", `[ "$1" != mount ] || [ ! -f "$2" ] || ` + success, "failed-mount", decide.Fail},
		"secret in the message": {
			"before", `[ "$1" != mount ] || [ ! -f "$2" ] || fail "$(echo "$3" | sed 's/.*secret.password":"//; s/".*//')"`,
			"secrets", decide.Fail,
		},
		"a daemon on the pipe": {"before", `[ "$1" != mount ] || sleep 5 &`, "output-kept-open", decide.Fail},
		"a daemon that stays": {
			"before", `[ "$1" != mount ] || sleep 600 >/dev/null 2>&1 </dev/null &`, "leftover-processes", decide.Fail,
		},
		"a call that hangs": {"unmount", `sleep 600`, "time-limit", decide.Fail},
	}
}

// TestFaults: each fault is found by the check that is there for it.
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
				func(g decide.Finding) bool { return g.Check == f.check && g.Level == f.level && g.Next != "" })
			if !found || r.Level != decide.Worst(r.Findings) {
				t.Errorf("no %s of %s in:\n%s", f.level, f.check, listed(r))
			}
			if strings.Contains(listed(r), "pa55word-of-nobody") {
				t.Errorf("a secret is shown:\n%s", listed(r))
			}
		})
	}
}

// attaching is a driver with nothing to complain about whose devices are
// directories.
func attaching() parts {
	return parts{
		"before": `s=${0%/*}/state; mkdir -p "$s/device"`,
		"init":   `say '{"status":"Success","capabilities":{"attach":true}}'`,
		"mount":  `echo '{"status":"Not supported"}'; exit 1`, "unmount": `echo '{"status":"Not supported"}'; exit 1`,
		"*":             `echo '{"status":"Not supported"}'; exit 1`,
		"getvolumename": `say '{"status":"Success","volumeName":"vol/1"}'`,
		"attach":        `: >"$s/attached"; say "{\"status\":\"Success\",\"device\":\"$s/device\"}"`,
		"isattached":    `a=false; [ ! -e "$s/attached" ] || a=true; say "{\"status\":\"Success\",\"attached\":$a}"`,
		"waitforattach": `say "{\"status\":\"Success\",\"device\":\"$s/device\"}"`,
		"mountdevice":   `mountpoint -q "$2" || mount --bind "$3" "$2" 2>/dev/null || fail no; say '{"status":"Success"}'`,
		"unmountdevice": `if mountpoint -q "$2"; then umount "$2" 2>/dev/null || fail busy; fi; say '{"status":"Success"}'`,
		"detach":        `[ "$2" = vol~1 ] || fail "which $2"; rm -f "$s/attached"; say '{"status":"Success"}'`,
	}
}

// all returns the script of a driver that has more than three operations.
func (p parts) all() string {
	before := p["before"] + "\ncase $1 in\n"
	for _, op := range []string{
		"getvolumename", "attach", "isattached", "waitforattach", "mountdevice", "unmountdevice", "detach", "expandvolume",
		"expandfs",
	} {
		if text, has := p[op]; has {
			before += op + ") " + text + " ;;\n"
		}
	}
	q := maps.Clone(p)
	q["before"] = before + "esac"
	return q.script()
}

// TestSoundAttachingDriver: all checks of a driver that attaches.
func TestSoundAttachingDriver(t *testing.T) {
	t.Parallel()
	r, d, err := examined(t, attaching().all(), nil)
	if err != nil || r.Level != decide.Pass {
		t.Error(err)
	}
	// What the file system is called is the machine's business.
	text := regexp.MustCompile(`(?m): \S+ is mounted$`).ReplaceAllString(
		strings.ReplaceAll(listed(r), filepath.Dir(d.Path), "DIR"), ": it is mounted")
	golden.Equal(t, "testdata/attaching.txt", text)
}

// TestAttachingFaults: each fault is found by the check that is there for it.
func TestAttachingFaults(t *testing.T) {
	t.Parallel()
	const success, no = `say '{"status":"Success"}'`, `echo '{"status":"Not supported"}'; exit 1`
	faults := map[string]fault{
		"a name that leads upwards": {
			"getvolumename", `say '{"status":"Success","volumeName":".."}'`, "getvolumename", decide.Fail,
		},
		"two names": {
			"getvolumename", `say "{\"status\":\"Success\",\"volumeName\":\"v$$\"}"`, "getvolumename", decide.Fail,
		},
		"no name":            {"getvolumename", `fail "what?"`, "getvolumename", decide.Fail},
		"no attach":          {"attach", `fail "no such volume"`, "attach", decide.Fail},
		"attached once only": {"attach", `[ ! -e "$s/attached" ] || fail "attached"; : >"$s/attached"; say "{\"status\":\"Success\",\"device\":\"$s/device\"}"`, "attach-again", decide.Warn},
		"another device": {
			"attach", `say "{\"status\":\"Success\",\"device\":\"/dev/$$\"}"`, "attach-device", decide.Fail,
		},
		"attached is a word": {
			"isattached", `say '{"status":"Success","attached":"True"}'`, "isattached", decide.Fail,
		},
		"attached is python":        {"isattached", `say '{"status":"Success","attached":True}'`, "isattached", decide.Fail},
		"attached is not said":      {"isattached", success, "isattached", decide.Warn},
		"attached after the detach": {"detach", success, "isattached-after", decide.Fail},
		"no device comes":           {"waitforattach", `fail "no device"`, "waitforattach", decide.Fail},
		"arguments of the shell": {
			"waitforattach", `set -- $*; d=$(echo "$2" | sed 's/"/\\"/g'); say "{\"status\":\"Success\",\"device\":\"$d\"}"`,
			"empty-device", decide.Fail,
		},
		"waits for an empty device": {
			"waitforattach", `[ -n "$2" ] || sleep 600; say "{\"status\":\"Success\",\"device\":\"$2\"}"`, "empty-device",
			decide.Fail,
		},
		"mounts the device twice": {
			"mountdevice", `mount --bind "$3" "$2" 2>/dev/null; ` + success, "mountdevice-again", decide.Fail,
		},
		"no device for the host": {"mountdevice", no, "mountdevice", decide.Fail},
		"unmounts no device":     {"unmountdevice", success, "unmountdevice", decide.Fail},
		"unmounts a device once": {
			"unmountdevice", `umount "$2" 2>/dev/null || fail "not mounted"; ` + success, "unmountdevice-again", decide.Warn,
		},
		"no detach": {"detach", `fail "busy"`, "detach", decide.Fail},
		"detached once only": {
			"detach", `rm "$s/attached" 2>/dev/null || fail "not attached"; ` + success, "detach-again", decide.Warn,
		},
	}
	findsAll(t, faults, attaching, parts.all, nil)
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
		if err != nil || r.Level != decide.Pass {
			t.Errorf("%s: %v\n%s", name, err, listed(r))
		}
	}
}

// TestInterrupted: all is taken away as well when a program is interrupted that
// ends with what Run returns.
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
