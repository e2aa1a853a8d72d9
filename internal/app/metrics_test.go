package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/testkit"
)

// TestServedFromTheBeginning: metrics and health are served while the driver does not answer, and the process says that
// it waits for it.
func TestServedFromTheBeginning(t *testing.T) {
	at := testkit.FreeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Controllers(ctx, options.ControllersOptions{
			Config: &rest.Config{}, Version: "v1", Log: slog.New(slog.DiscardHandler),
			ControllersOptions: sidecar.ControllersOptions{
				Roles: DriverControllers(), Socket: filepath.Join(t.TempDir(), "csi.sock"), Namespace: "ns",
				HTTP: []sidecar.HTTPOptions{{Address: at}},
			},
		})
	}()
	patience, over := context.WithTimeout(ctx, time.Minute)
	defer over()
	if err := testkit.Until(patience, func() string {
		return lacks(body(ctx, at, "/readyz"), "[-]driver failed: the driver does not answer yet")
	}); err != nil {
		t.Fatal(err)
	}
	served := body(ctx, at, "/metrics")
	if missing := lacks(served, `volplane_build_info{`, `version="v1"`, "go_goroutines"); missing != "" {
		t.Error(missing)
	}
	err := Controllers(ctx, options.ControllersOptions{
		Log: slog.New(slog.DiscardHandler), ControllersOptions: sidecar.ControllersOptions{
			Namespace: "ns", HTTP: []sidecar.HTTPOptions{{Address: at}},
		},
	})
	if err == nil || !strings.HasPrefix(err.Error(), "--http-endpoint "+at) {
		t.Errorf("a port in use: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func body(ctx context.Context, at, path string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, nil)
	if err != nil {
		return err.Error()
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestDriverUp: a driver that is gone is down while it is wanted.
func TestDriverUp(t *testing.T) {
	r, drivers, wanted := observe.New(""), csi.NewSet(), true
	measureDrivers(r, drivers, func(string) bool { return wanted })
	is := func(want string) {
		t.Helper()
		all, err := r.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range all {
			if f.GetName() == observe.DriverUp {
				for _, m := range f.GetMetric() {
					got += fmt.Sprint(m.GetLabel()[0].GetValue(), " ", m.GetGauge().GetValue())
				}
			}
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	is("")
	d := csitest.Start(t, csitest.Full()).Dial()
	drivers.Put(d)
	is(d.Name + " 1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	is(d.Name + " 0")
	drivers.Remove(d)
	is(d.Name + " 0")
	wanted = false
	is("")
}

// TestReadiness: a process waits for the driver; it is ready while another one leads, and not before it has read the
// objects when it leads itself.
func TestReadiness(t *testing.T) {
	var r readiness
	is := func(want string) {
		t.Helper()
		got := ""
		for _, c := range r.checks() {
			if c.Ready() != nil {
				got += c.Name + " "
			}
		}
		if got != want {
			t.Errorf("not ready: %q, want %q", got, want)
		}
	}
	is("driver ")
	r.driver.Store(true)
	is("")
	r.leads.Store(true)
	is("controllers ")
	r.works.Store(true)
	is("")
	r.rests()
	r.leads.Store(true)
	is("controllers ")
}

// lacks returns what a text does not have of these words; "" if it has all.
func lacks(text string, words ...string) string {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return "no " + w + " in " + text
		}
	}
	return ""
}
