package options

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestLevels: what -v asks for, of our own log and of that of libraries, while the program runs and once it ends. It is
// the table of levels in the documentation.
func TestLevels(t *testing.T) {
	const call, talks = slog.Level(-5), "DEBUG INFO WARN ERROR klog-ERROR klog-gone klog-WARN klog-0"
	for _, test := range []struct {
		verbosity          int
		want, wantAtTheEnd string
	}{
		{0, "INFO WARN ERROR klog-ERROR", "INFO WARN ERROR"},
		{1, talks, talks},
		{4, "DEBUG INFO WARN ERROR klog-ERROR klog-gone klog-WARN klog-0 klog-4", ""},
		{5, "DEBUG-1 DEBUG INFO WARN ERROR klog-ERROR klog-gone klog-WARN klog-0 klog-4", ""},
		{7, "DEBUG-1 DEBUG INFO WARN ERROR klog-ERROR klog-gone klog-WARN klog-0 klog-4 klog-7", ""},
		{9, "DEBUG-1 DEBUG INFO WARN ERROR klog-ERROR klog-gone klog-WARN klog-0 klog-4 klog-7", ""},
	} {
		for ends, want := range map[bool]string{false: test.want, true: test.wantAtTheEnd} {
			if want == "" {
				continue
			}
			var out bytes.Buffer
			log := NewLog(&out, "text", test.verbosity, func() bool { return ends })
			var got []string
			note := func(name string, say func()) {
				out.Reset()
				if say(); out.Len() > 0 {
					got = append(got, name)
				}
			}
			for _, level := range []slog.Level{call, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
				note(level.String(), func() { log.Log(t.Context(), level, "ours") })
			}
			note("klog-ERROR", func() { klog.ErrorS(nil, "theirs") })
			note("klog-gone", func() { klog.Errorf("theirs: %v", context.Canceled) })
			note("klog-WARN", func() { klog.Warning("theirs") })
			for _, level := range []klog.Level{0, 4, 7, 8, 9} {
				note(fmt.Sprint("klog-", level), func() { klog.V(level).InfoS("theirs") })
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("-v %d, ends %v: %s, want %s", test.verbosity, ends, text, want)
			}
		}
	}
}

// TestFormat: libraries and we write the same format.
func TestFormat(t *testing.T) {
	var out bytes.Buffer
	log := NewLog(&out, "json", 0, func() bool { return false })
	log.Info("ours")
	klog.ErrorS(nil, "theirs")
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, `{"time":`) {
			t.Error(line)
		}
	}
	if strings.Count(out.String(), "\n") != 2 {
		t.Error(out.String())
	}
}
