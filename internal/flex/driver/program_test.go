package driver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// copyOf copies a program of this host.
func copyOf(t *testing.T, program, to string) {
	t.Helper()
	from, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	install(t, to, string(data))
}

// TestTheCheckedProgramRuns: a program that takes the place of the one that was
// checked, just before the start, is not started; argv[0] is the path.
func TestTheCheckedProgramRuns(t *testing.T) {
	t.Parallel()
	path := filepath.Join(place(t), "t")
	copyOf(t, "cat", path)
	is, hash, err := identify(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{Path: path, Hash: hash, file: is}
	checked, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	defer checked.Close()
	copyOf(t, "true", path)
	e, err := process{program: checked, args: []string{"/proc/self/cmdline"}, limit: time.Minute}.run()
	if want := path + "\x00/proc/self/cmdline\x00"; err != nil || string(e.stdout) != want {
		t.Errorf("printed %q, %v; want %q", e.stdout, err, want)
	}
	if _, err := d.open(); !errors.Is(err, ErrChanged) {
		t.Errorf("the next start: %v", err)
	}
}

// TestExchangedScripts: if a script's path led elsewhere at any time during a call, even
// if it is back by the end, another program may have run: what it mounted is unmounted,
// and whether the call succeeded is unknown.
func TestExchangedScripts(t *testing.T) {
	t.Parallel()
	for name, exchange := range map[string]string{
		"another takes its place":    `cp "$0" "$0.new"; echo "# new" >>"$0.new"; mv "$0.new" "$0"`,
		"written in place":           `echo "# new" >>"$0"`,
		"and its time set back":      `touch -r "$0" "$0.time"; printf "#!/bin/sh" | dd of="$0" conv=notrunc 2>/dev/null; touch -r "$0.time" "$0"`,
		"away and back":              `mv "$0" "$0.old"; cp "$0.old" "$0"; mv "$0.old" "$0"`,
		"it gets another name":       `ln "$0" "$0.link"`,
		"gone":                       `rm "$0"`,
		"a pipe that nobody fills":   `rm "$0"; mkfifo "$0"`,
		"its directory is exchanged": `mv "${0%/*}" "${0%/*}.old"; mkdir "${0%/*}"; cp "${0%/*}.old/t" "$0"`,
	} {
		b := newBench(t, ready+"\nmount) "+mountsOne+"; "+exchange+" ;;\ndetach) "+success+"; "+exchange+" ;;\n"+unmounts,
			options(10*time.Second))
		_, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{})
		var e *CallError
		if !errors.As(err, &e) || e.Outcome == volume.Done || !errors.Is(err, ErrExchanged) {
			t.Errorf("%s: %v", name, err)
		}
		if left := b.mounted(t); left != "" {
			t.Errorf("%s: mounted: %s", name, left)
		}
	}
	b := newBench(t, attaches+"\ndetach) "+success+"; echo >>\"$0\" ;;\n", options(10*time.Second))
	var e *CallError
	if err := b.Detach(t.Context(), "pv", "n"); !errors.As(err, &e) || e.Outcome != volume.Unknown ||
		!errors.Is(err, ErrExchanged) {
		t.Errorf("detach: %v", err)
	}
}

// TestScriptsFindWhatIsBesideThem: $0 is the path in the plugin directory.
func TestScriptsFindWhatIsBesideThem(t *testing.T) {
	t.Parallel()
	root := place(t)
	path := filepath.Join(root, "example.com~t", "t")
	install(t, filepath.Join(root, "example.com~t", "lib.sh"),
		ready[strings.Index(ready, "echo"):strings.Index(ready, " ;;")]+"\n")
	install(t, path, "#!/bin/sh\n. \"$(dirname \"$0\")/lib.sh\"\n")
	if _, err := Probe(t.Context(), decide.Name{Vendor: "example.com", Driver: "t"}, path,
		options(time.Minute)); err != nil {
		t.Error(err)
	}
}
