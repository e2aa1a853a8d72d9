package lifecycle

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: a wait is told at growing intervals, with its last cause, and so is its end; a short one is not told.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := NewWait(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})), "waiting")
		w.For("one")
		<-time.After(firstNotice - 1)
		w.Over()
		w.Over()
		w.For("one")
		<-time.After(firstNotice + 1)
		w.For("two")
		<-time.After(2*firstNotice + 1)
		w.Over()
		w.For("three")
		<-time.After(time.Hour)
		w.Stop()
		<-time.After(time.Hour)
		got := strings.Split(strings.TrimSpace(log.String()), "\n")
		want := []string{
			"level=INFO msg=waiting why=one since=5s", "level=INFO msg=waiting why=two since=15s",
			"level=INFO msg=\"waiting: it is over\" after=15s", "level=INFO msg=waiting why=three since=5s",
		}
		for i, line := range want {
			if got[i] != line {
				t.Errorf("line %d is %s, want %s", i, got[i], line)
			}
		}
		if len(got) < 10 || len(got) > 20 || !strings.Contains(got[len(got)-1], "since=50m35s") {
			t.Errorf("%d lines, the last one %s", len(got), got[len(got)-1])
		}
	})
}
