package up

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowStartTells: a quick start tells nothing; a slow one tells each step, and reminds of one that lasts.
func TestSlowStartTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := begin(t.Context(), &out)
		<-time.After(patience - time.Millisecond)
		if took := s.end(); out.String() != "" || took != patience-time.Millisecond {
			t.Errorf("after %s: %q", took, out.String())
		}
		s = begin(t.Context(), &out)
		<-time.After(patience + time.Millisecond)
		s.does("starting etcd")
		<-time.After(remind + patience)
		s.end()
		const want = "starting,   2 s: opening the data directory\nstarting,   2 s: starting etcd\n" +
			"starting,  12 s: starting etcd\n"
		if got := strings.ReplaceAll(out.String(), "  3 s", "  2 s"); strings.Replace(got, " 13 s", " 12 s", 1) != want {
			t.Errorf("%s\nwant\n%s", out.String(), want)
		}
	})
}
