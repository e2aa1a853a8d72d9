package nodesidecar

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/testkit"
)

// TestLivenessMetrics: the metrics are served beside /healthz and at other addresses, and count the probes with the
// driver's name.
func TestLivenessMetrics(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	health, other := testkit.FreeAddress(t), testkit.FreeAddress(t)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Liveness(ctx, sidecar.LivenessOptions{
			Socket: d.Socket, Address: health, Log: slog.New(slog.DiscardHandler),
			HTTP: []sidecar.HTTPOptions{{Address: health, MetricsPath: "/m"}, {Address: other}, {Address: other}},
		})
	}()
	s := subject{t: t, address: health}
	count := `csi_sidecar_operations_seconds_count{driver_name="` + d.Name() +
		`",grpc_status_code="OK",method_name="/csi.v1.Identity/Probe"}`
	for limit := time.Now().Add(patience); ; {
		if s.answers("200 ok"); strings.Contains(fetch(t, health+"/m"), count) {
			break
		} else if time.Now().After(limit) {
			t.Fatal(fetch(t, health+"/m"))
		}
	}
	if got := fetch(t, other+"/metrics"); !strings.Contains(got, count) {
		t.Error(got)
	}
	if got := fetch(t, other+"/healthz"); got != "404 page not found" {
		t.Error(got)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// fetch returns what is served at an address.
func fetch(t *testing.T, address string) string {
	t.Helper()
	r, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestLivenessEnds: it ends with an error when its address is taken, or when the driver has no valid name.
func TestLivenessEnds(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	o := sidecar.LivenessOptions{Socket: d.Socket, Address: "256.0.0.1:1", Log: slog.New(slog.DiscardHandler)}
	if err := Liveness(t.Context(), o); err == nil {
		t.Error("it listens nowhere, and does not say so")
	}
	d.Rename("no/name")
	d.Restart()
	o.Address = testkit.FreeAddress(t)
	if err := Liveness(t.Context(), o); err == nil {
		t.Error("the driver has no valid name, and it does not say so")
	}
}
