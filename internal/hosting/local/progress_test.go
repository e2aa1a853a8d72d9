package local

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLongCopyIsLogged: a quick copy logs nothing; a long one logs how far it is, and again every so often.
func TestLongCopyIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 8*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(slog.New(slog.NewTextHandler(&out, nil)), path, info)
		for _, c := range []struct {
			argues string
			wait   time.Duration
			want   string
		}{
			{"a quick copy logs nothing", patience - time.Millisecond, ""},
			{"a long one does", time.Millisecond, `copied="2 MiB" of="8 MiB" seconds=2`},
			{"but not at each step", time.Second, ""},
			{"and again when it still lasts", remind, `copied="4 MiB" of="8 MiB" seconds=13`},
		} {
			out.Reset()
			<-time.After(c.wait)
			p.add(mib)
			if got := out.String(); (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
				t.Errorf("%s: %q, want %q", c.argues, got, c.want)
			}
		}
	})
}
