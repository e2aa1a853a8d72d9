package doctor

import (
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/workshop/finding"
)

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
		"detach":        `case $2 in vol~1|pv1) ;; *) fail "which $2" ;; esac; rm -f "$s/attached"; say '{"status":"Success"}'`,
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
	if err != nil || r.Level != finding.Pass {
		t.Error(err)
	}
	// What the file system is called is the machine's business.
	text := regexp.MustCompile(`(?m): \S+ is mounted$`).ReplaceAllString(
		strings.ReplaceAll(listed(r), filepath.Dir(d.Path), "DIR"), ": it is mounted")
	golden.Equal(t, "testdata/attaching.txt", text)
}

// TestAttachingFaults: each fault is found by the check that is meant for it.
func TestAttachingFaults(t *testing.T) {
	t.Parallel()
	const success, no = `say '{"status":"Success"}'`, `echo '{"status":"Not supported"}'; exit 1`
	faults := map[string]fault{
		"a name that leads upwards": {
			"getvolumename", `say '{"status":"Success","volumeName":".."}'`, "getvolumename", finding.Fail,
		},
		"two names": {
			"getvolumename", `say "{\"status\":\"Success\",\"volumeName\":\"v$$\"}"`, "getvolumename", finding.Fail,
		},
		"no name":            {"getvolumename", `fail "what?"`, "getvolumename", finding.Fail},
		"no attach":          {"attach", `fail "no such volume"`, "attach", finding.Fail},
		"attached once only": {"attach", `[ ! -e "$s/attached" ] || fail "attached"; : >"$s/attached"; say "{\"status\":\"Success\",\"device\":\"$s/device\"}"`, "attach-again", finding.Warn},
		"another device": {
			"attach", `say "{\"status\":\"Success\",\"device\":\"/dev/$$\"}"`, "attach-device", finding.Fail,
		},
		"attached is a word": {
			"isattached", `say '{"status":"Success","attached":"True"}'`, "isattached", finding.Fail,
		},
		"attached is python":        {"isattached", `say '{"status":"Success","attached":True}'`, "isattached", finding.Fail},
		"attached is not said":      {"isattached", success, "isattached", finding.Warn},
		"attached after the detach": {"detach", success, "detach", finding.Fail},
		"attached never": {
			"isattached", `say '{"status":"Success","attached":false}'`, "isattached", finding.Fail,
		},
		"detach by its own name only": {
			"detach", `[ "$2" = vol~1 ] || fail "which $2"; rm -f "$s/attached"; ` + success, "detach-by-object", finding.Fail,
		},
		"detach by its own name, silently": {
			"detach", `[ "$2" != vol~1 ] || rm -f "$s/attached"; ` + success, "detach-by-object", finding.Fail,
		},
		"no device comes": {"waitforattach", `fail "no device"`, "waitforattach", finding.Fail},
		"arguments of the shell": {
			"waitforattach", `set -- $*; d=$(echo "$2" | sed 's/"/\\"/g'); say "{\"status\":\"Success\",\"device\":\"$d\"}"`,
			"empty-device", finding.Warn,
		},
		"arguments of the shell, and a path": {
			"waitforattach", `set -- $*; case $2 in /*) ;; *) set -- x /dev/mapper/null ;; esac; say "{\"status\":\"Success\",\"device\":\"$2\"}"`,
			"empty-device", finding.Warn,
		},
		"an empty device that hosts have": {
			"before", `s=${0%/*}/state; mkdir -p "$s/device"; case $1 in attach) : >"$s/attached"; ` + success +
				` ;; waitforattach) set -- $*; say "{\"status\":\"Success\",\"device\":\"$(echo "$2" | sed 's/"/\\\\"/g')\"}" ;; esac`,
			"empty-device", finding.Fail,
		},
		"waits for an empty device": {
			"waitforattach", `[ -n "$2" ] || sleep 600; say "{\"status\":\"Success\",\"device\":\"$2\"}"`, "empty-device",
			finding.Warn,
		},
		"mounts the device twice": {
			"mountdevice", `mount --bind "$3" "$2" 2>/dev/null; ` + success, "mountdevice-again", finding.Warn,
		},
		"no device for the host": {"mountdevice", no, "mountdevice", finding.Fail},
		"unmounts no device":     {"unmountdevice", success, "unmountdevice", finding.Fail},
		"unmounts a device once": {
			"unmountdevice", `umount "$2" 2>/dev/null || fail "not mounted"; ` + success, "unmountdevice-again", finding.Warn,
		},
		"no detach": {"detach", `fail "busy"`, "detach", finding.Fail},
		"detached once only": {
			"detach", `rm "$s/attached" 2>/dev/null || fail "not attached"; ` + success, "detach-again", finding.Warn,
		},
	}
	findsAll(t, faults, attaching, parts.all, nil)
}
