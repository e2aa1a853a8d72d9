package host

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestReport: a report shows what the host knows now, and nothing once the host has ended.
func TestReport(t *testing.T) {
	r := newRig(t)
	root := t.TempDir()
	if _, err := ReadReport(root); !errors.Is(err, ErrNoHost) {
		t.Errorf("before: %v", err)
	}
	r.start()
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() { told <- r.ServeReport(ctx, root) }()
	read := func() []State {
		report, err := ReadReport(root)
		if err == nil && report.Dir != r.Dir {
			t.Errorf("the plugin directory is %s", report.Dir)
		}
		return report.Drivers
	}
	r.install("example.com~a", r.script("1", mountOnly))
	r.eventually("the driver is told of", func() bool {
		all := read()
		return len(all) == 1 && all[0].Name == "example.com/a" && all[0].State == decide.Ready
	})
	r.Keep(decide.Name{Vendor: "example.com", Driver: "a"}, "a volume")
	r.eventually("its use is told of", func() bool {
		all := read()
		return len(all) == 1 && all[0].InUse == 1
	})
	cancel()
	if err := <-told; err != nil {
		t.Error(err)
	}
	if _, err := ReadReport(root); !errors.Is(err, ErrNoHost) {
		t.Errorf("after: %v", err)
	}
}

// TestRefused says what a host would say, without a host.
func TestRefused(t *testing.T) {
	r := newRig(t)
	r.install("example.com~a", r.script("1", mountOnly))
	r.install("A~B~c", r.script("1", mountOnly))
	if why, err := Refused(r.Dir, "example.com~a"); err != nil || why.Reason != "" {
		t.Errorf("%+v, %v", why, err)
	}
	if why, err := Refused(r.Dir, "A~B~c"); err != nil || why.Reason == "" {
		t.Errorf("%+v, %v", why, err)
	}
	if all, err := Survey(t.Context(), filepath.Join(r.root, "nothing")); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
}
