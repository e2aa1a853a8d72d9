package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/workshop/finding"
)

// growing is a sound driver without attach whose small tmpfs can grow.
func growing() parts {
	p := sound()
	p["init"] = `say '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":true}}'`
	p["expandfs"] = `mount -o "remount,size=$5" "$4" >/dev/null 2>&1 || fail "cannot grow"; say '{"status":"Success"}'`
	return p
}

const grownSize = 2 << 20

func toGrownSize(d *Doctor) { d.GrowTo = grownSize }

// ofGrowing returns the findings that are about growing.
func ofGrowing(r Report) Report {
	r.Findings = slices.DeleteFunc(slices.Clone(r.Findings), func(f finding.Finding) bool {
		return !strings.HasPrefix(f.Check, "expand") && !strings.HasPrefix(f.Check, "grown")
	})
	return r
}

// TestGrowsOnlyWhenAsked: it changes the volume forever.
func TestGrowsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	p := growing()
	p["before"] = `case $1 in expand*) : >"${0%/*}/asked" ;; esac`
	for _, size := range []int64{0, grownSize} {
		r, d, err := examined(t, p.all(), func(d *Doctor) { d.GrowTo = size })
		_, asked := os.Stat(filepath.Join(filepath.Dir(d.Path), "asked"))
		if err != nil || r.Level != finding.Pass || (asked == nil) != (size > 0) ||
			(len(ofGrowing(r).Findings) > 0) != (size > 0) {
			t.Errorf("to %d: %v, %v\n%s", size, asked, err, listed(r))
		}
	}
}

// TestSoundGrowingDriver: all checks of a volume that grows.
func TestSoundGrowingDriver(t *testing.T) {
	t.Parallel()
	r, _, err := examined(t, growing().all(), toGrownSize)
	if err != nil || r.Level != finding.Pass {
		t.Errorf("%v\n%s", err, listed(r))
	}
	golden.Equal(t, "testdata/growing.txt", listed(ofGrowing(r)))
}

// TestArgumentsOfGrowing are those of the bridge.
func TestArgumentsOfGrowing(t *testing.T) {
	t.Parallel()
	p := growing()
	p["before"] = `case $1 in expand*) printf '%s|' "$@" >>"${0%/*}/args"; echo >>"${0%/*}/args" ;; esac`
	p["expandvolume"] = `say '{"status":"Success","volumeNewSize":3145728}'`
	r, d, err := examined(t, p.all(), toGrownSize)
	if err != nil || r.Level != finding.Pass {
		t.Errorf("%v\n%s", err, listed(r))
	}
	got, err := os.ReadFile(filepath.Join(filepath.Dir(d.Path), "args"))
	if err != nil {
		t.Fatal(err)
	}
	const (
		json   = `{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"rw"}`
		volume = "expandvolume|" + json +
			"|ROOT/plugins/kubernetes.io/flexvolume/example.com/test/mounts/pv1|2097152|1048576|\n"
		fs = "expandfs|" + json +
			"||ROOT/pods/00000000-0000-4000-8000-000000000001/volumes/example.com~test/pv1|3145728|1048576|\n"
	)
	if text := regexp.MustCompile(`/[^|]*/volplane-doctor-[0-9]+`).ReplaceAllString(string(got),
		"ROOT"); text != volume+volume+fs+fs {
		t.Errorf("called with\n%s", text)
	}
}

// TestGrowingFaults: each fault is found by the check that is meant for it.
func TestGrowingFaults(t *testing.T) {
	t.Parallel()
	const (
		success, no = `say '{"status":"Success"}'`, `echo '{"status":"Not supported"}'; exit 1`
		grow        = `mount -o "remount,size=$5" "$4" >/dev/null 2>&1 || fail "cannot grow"; `
	)
	faults := map[string]fault{
		"the size is a text": {
			"expandvolume", `say '{"status":"Success","volumeNewSize":"2097152"}'`, "expandvolume", finding.Fail,
		},
		"the size is negative": {
			"expandvolume", `say '{"status":"Success","volumeNewSize":-1}'`, "expandvolume", finding.Fail,
		},
		"the size has a point": {
			"expandvolume", `say '{"status":"Success","volumeNewSize":2097152.5}'`, "expandvolume", finding.Fail,
		},
		"the size is of another unit": {
			"expandvolume", `say '{"status":"Success","volumeNewSize":2}'`, "expandvolume", finding.Fail,
		},
		"it cannot grow": {"expandvolume", `fail "no room"`, "expandvolume", finding.Fail},
		"no answer":      {"expandvolume", `exit 0`, "one-answer", finding.Warn},
		"it grows once": {
			"expandvolume", `mkdir "${0%/*}/once" 2>/dev/null || fail "again?"; ` + success, "expandvolume-again", finding.Fail,
		},
		"it grows by a difference":  {"expandvolume", `echo >>"${0%/*}/n"; n=$(wc -l <"${0%/*}/n"); say "{\"status\":\"Success\",\"volumeNewSize\":$(($4 + ($4 - $5) * n))}"`, "expandvolume-again", finding.Fail},
		"it hangs":                  {"expandvolume", `sleep 600`, "time-limit", finding.Fail},
		"noise on standard error":   {"expandvolume", `echo grown >&2; ` + no, "standard-error", finding.Warn},
		"noise with the filesystem": {"expandfs", grow + `echo grown >&2; ` + success, "standard-error", finding.Fail},
		"the filesystem cannot":     {"expandfs", `fail "no tool"`, "expandfs", finding.Fail},
		"the filesystem once": {
			"expandfs", `mkdir "${0%/*}/once" 2>/dev/null || fail "again?"; ` + grow + success, "expandfs-again", finding.Fail,
		},
		"first yes, then no": {
			"expandfs", `mkdir "${0%/*}/once" 2>/dev/null || { ` + no + `; }; ` + grow + success, "expandfs-again", finding.Fail,
		},
		"nothing grows": {"expandfs", success, "grown", finding.Fail},
		"it becomes smaller": {
			"expandfs", `mount -o remount,size=512k "$4" >/dev/null 2>&1; ` + success, "grown", finding.Fail,
		},
		"nobody grows anything": {"expandfs", no, "grown", finding.Warn},
		"capability without a call": {
			"init", `say '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":false}}'`, "grown", finding.Warn,
		},
		"a new filesystem": {
			"expandfs", `umount "$4"; mount -t tmpfs -o size=$5 x "$4" 2>/dev/null; ` + success, "grown-data", finding.Fail,
		},
		"one on top of the other": {
			"expandfs", `mount -t tmpfs -o size=$5 x "$4" 2>/dev/null; ` + success, "grown-data", finding.Fail,
		},
		"nothing can be written": {
			"mount", `mountpoint -q "$2" || mount -t tmpfs -o size=1m,ro x "$2" 2>/dev/null || fail no; ` + success,
			"grown-data", finding.Warn,
		},
	}
	findsAll(t, faults, growing, parts.all, toGrownSize)
}

// TestNothingToGrow: what is as large already is left alone.
func TestNothingToGrow(t *testing.T) {
	t.Parallel()
	r, _, err := examined(t, growing().all(), func(d *Doctor) { d.GrowTo = 1 << 20 })
	if all := ofGrowing(r).Findings; err != nil || len(all) != 1 || all[0].Check != "grown" ||
		all[0].Level != finding.Warn {
		t.Errorf("%v\n%s", err, listed(r))
	}
}

// onLoop is a driver whose device is a loop device, and which leaves to the host
// what the host can do.
func onLoop() parts {
	p := attaching()
	p["before"] = `s=${0%/*}; i=$s/image; device() { losetup --noheadings --output NAME --associated "$i" | head -n 1; }`
	p["init"] = `say '{"status":"Success","capabilities":{"attach":true,"requiresFSResize":true}}'`
	p["attach"] = `[ -e "$i" ] || truncate -s 320M "$i"; [ -n "$(device)" ] || losetup --find "$i"; say "{\"status\":\"Success\",\"device\":\"$(device)\"}"`
	p["isattached"] = `a=false; [ -z "$(device)" ] || a=true; say "{\"status\":\"Success\",\"attached\":$a}"`
	p["waitforattach"] = `say "{\"status\":\"Success\",\"device\":\"$(device)\"}"`
	p["detach"] = `d=$(device); [ -z "$d" ] || losetup --detach "$d"
	# Whoever looks at all devices has it open now and then.
	while [ -n "$(device)" ]; do sleep 0.01; done
	say '{"status":"Success"}'`
	p["expandvolume"] = `truncate -s "$4" "$i"; losetup --set-capacity "$(device)"; say "{\"status\":\"Success\",\"volumeNewSize\":$4}"`
	for _, op := range []string{"mountdevice", "unmountdevice"} {
		delete(p, op)
	}
	return p
}

// TestHostGrows the filesystem of a driver that does not, and sees through one
// whose device does not grow.
func TestHostGrows(t *testing.T) {
	t.Parallel()
	const size = 400 << 20
	change := func(d *Doctor) { d.GrowTo, d.FSType, d.Limit = size, "xfs", time.Minute }
	r, d, err := examined(t, onLoop().all(), change)
	if err != nil || r.Level != finding.Pass {
		t.Errorf("%v\n%s", err, listed(r))
	}
	golden.Equal(t, "testdata/hostgrows.txt", listed(ofGrowing(r)))
	if info, err := os.Stat(filepath.Join(filepath.Dir(d.Path), "image")); err != nil || info.Size() != size {
		t.Errorf("the image: %+v, %v", info, err)
	}
	for name, f := range map[string]fault{
		"the device does not see it": {
			"expandvolume", `truncate -s "$4" "$i"; say '{"status":"Success"}'`, "expandvolume", finding.Fail,
		},
		"the device grows more": {
			"expandvolume", `truncate -s "+$(($4 - $5))" "$i"; losetup --set-capacity "$(device)"; say '{"status":"Success"}'`,
			"expandvolume-again", finding.Fail,
		},
		"what the host does is undone": {"expandfs", `say '{"status":"Success"}'`, "grown", finding.Fail},
	} {
		p := onLoop()
		p[f.part] = f.text
		r, _, err := examined(t, p.all(), change)
		if err != nil || !slices.ContainsFunc(r.Findings, func(g finding.Finding) bool {
			return g.Check == f.check && g.Level == f.level && g.Next != ""
		}) {
			t.Errorf("%s: %v\n%s", name, err, listed(r))
		}
	}
}

// TestWithheldCapability: what the host withholds is not the driver's fault, whether the host or the
// driver expands the filesystem.
func TestWithheldCapability(t *testing.T) {
	t.Parallel()
	own := onLoop()
	own["expandfs"] = `resize2fs "$3" >/dev/null 2>&1 || fail "cannot grow"; say '{"status":"Success"}'`
	for name, p := range map[string]parts{"the host grows it": onLoop(), "the driver grows it": own} {
		r, _, err := examined(t, p.all(), func(d *Doctor) { d.GrowTo, d.FSType, d.Limit = 400<<20, "ext4", time.Minute })
		want := finding.Warn
		if mayResize() {
			want = finding.Pass
		}
		is := slices.ContainsFunc(r.Findings,
			func(f finding.Finding) bool { return f.Check == "expandfs" && f.Level == want })
		if err != nil || !is || finding.Worst(ofGrowing(r).Findings) != want || !r.Works.Volplane || !r.Works.Kubernetes {
			t.Errorf("%s: %v, want %s\n%s", name, err, want, listed(r))
		}
	}
}

// TestExampleGrows: lofs grows, and what is scratch space does not and says so.
func TestExampleGrows(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		change func(*Doctor)
		level  finding.Level
	}{
		"lofs": {func(d *Doctor) {
			d.GrowTo, d.FSType, d.Options = 400<<20, "xfs", map[string]string{"file": "doctor", "size": "320Mi"}
		}, finding.Pass},
		"scratch": {func(d *Doctor) { d.GrowTo = 1 << 40 }, finding.Warn},
	} {
		example, err := filepath.Abs("../../../examples/flex/" + name + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		script := "#!/bin/sh\nLOFS_POOL=" + t.TempDir() + " exec " + example + " \"$@\"\n"
		r, _, err := examined(t, script, func(d *Doctor) {
			want.change(d)
			d.Limit = time.Minute
		})
		if all := ofGrowing(r); err != nil || r.Level != want.level || finding.Worst(all.Findings) != want.level ||
			len(all.Findings) < 3 {
			t.Errorf("%s: %v\n%s", name, err, listed(r))
		}
	}
}
