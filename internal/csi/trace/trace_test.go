package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// callOf returns a call with a request of a size.
func callOf(driver string, at time.Time, size int) csi.Call {
	text, _ := json.Marshal(map[string]string{"volume_id": strings.Repeat("x", size)})
	return csi.Call{
		Time: at, Driver: driver, Method: csipb.Controller_CreateVolume_FullMethodName, Code: "OK", Request: text,
	}
}

// numbers returns the numbers of the calls to a driver that are remembered.
func numbers(t *testing.T, r *ring, driver string) []uint64 {
	t.Helper()
	var out []uint64
	lines, _, _ := r.since(driver, 0)
	for _, line := range lines {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e.Number)
	}
	return out
}

// TestBounds: what is remembered is bounded by age, by count and by size, for each driver and for all.
func TestBounds(t *testing.T) { synctest.Test(t, bounds) }

func bounds(t *testing.T) {
	r := newRing()
	add := func(driver string, calls, size int) {
		for range calls {
			r.add(callOf(driver, time.Now(), size))
		}
	}
	want := func(driver string, first, last uint64) {
		t.Helper()
		var all []uint64
		for n := first; n <= last; n++ {
			all = append(all, n)
		}
		if got := numbers(t, r, driver); !slices.Equal(got, all) {
			t.Errorf("%s has %d calls, %v, want %d to %d", driver, len(got), got, first, last)
		}
	}
	add("many", maxCalls+10, 1)
	want("many", 11, maxCalls+10)
	add("large", 20, maxBytes/8)
	want("large", 14, 20)
	want("many", 11, maxCalls+10)

	<-time.After(maxAge - time.Minute)
	add("many", 1, 1)
	want("many", 12, maxCalls+11)
	<-time.After(2 * time.Minute)
	want("many", maxCalls+11, maxCalls+11)
	want("large", 1, 0)

	for i := range 20 {
		add(fmt.Sprint("driver", i), 8, maxBytes/8)
	}
	if n := size(r); n > maxAll || n != r.bytes {
		t.Errorf("%d bytes are remembered and %d counted, %d are allowed", n, r.bytes, maxAll)
	}
	want("many", maxCalls+11, maxCalls+11)
	for i := range 2 * maxDrivers {
		add(fmt.Sprint("another", i), 1, 1)
	}
	if n := size(r); len(r.drivers) > maxDrivers || n != r.bytes {
		t.Errorf("%d drivers, %d bytes, counted as %d", len(r.drivers), n, r.bytes)
	}
}

func size(r *ring) int {
	sum := 0
	for _, h := range r.drivers {
		for _, c := range h.calls {
			sum += len(c.line) - 1 + overhead
		}
	}
	return sum
}

// TestCostsNothing until there are calls.
func TestCostsNothing(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := make([]*Trace, 100)
	for i := range all {
		all[i] = New()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(all)); each > 2<<10 {
		t.Errorf("a trace takes %d bytes", each)
	}
	runtime.KeepAlive(all)
}

func TestParseFaults(t *testing.T) {
	for text, want := range map[string]string{
		"CreateVolume:Unavailable":           "",
		"NodeStageVolume:hang":               "",
		"NodeStageVolume:hang 30s":           "",
		"*:lost once":                        "",
		"Probe:Internal 3x":                  "",
		"CreateVolume:NotFound 20%":          "",
		"CreateVolume:NotFound 0.5%":         "",
		"NodeStageVolume:hang 1m 50%":        "NodeStageVolume:hang 1m0s 50%",
		"NodeStageVolume:hang once":          "",
		"CreateVolume:NOT_FOUND 1x":          "CreateVolume:NotFound once",
		" CreateVolume : unavailable ":       "CreateVolume:Unavailable",
		"NodeStageVolume:hang 1s,*:lost 20%": "NodeStageVolume:hang 1s, *:lost 20%",
	} {
		all, err := ParseFaults(text)
		var said []string
		for _, f := range all {
			said = append(said, f.String())
		}
		if want == "" {
			want = text
		}
		if got := strings.Join(said, ", "); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
		again, err := ParseFaults(strings.Join(said, ","))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(all) {
			t.Errorf("%q is not what it says: %v, %v", text, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                                       "want METHOD:EFFECT",
		"CreateVolume":                           "want METHOD:EFFECT",
		"CreateVolume:":                          "want METHOD:EFFECT",
		"Createvolume:Internal":                  `CSI does not have the method "Createvolume"`,
		"/csi.v1.Node/x:lost":                    "CSI does not have the method",
		"CreateVolume:OK":                        `"OK" is not an effect`,
		"CreateVolume:explode":                   `"explode" is not an effect: use a gRPC code`,
		"CreateVolume:lost twice":                `"twice" does not say how often: use once, 3x or 20%`,
		"CreateVolume:lost 0x":                   "does not say how often",
		"CreateVolume:lost 101%":                 "does not say how often",
		"CreateVolume:lost NaN%":                 "does not say how often",
		"CreateVolume:hang -1s":                  "is not a valid time to hang",
		"CreateVolume:hang 48h":                  "is not a valid time to hang",
		"CreateVolume:hang 1s once twice":        `"twice" is not a fault`,
		"CreateVolume:lost,":                     "want METHOD:EFFECT",
		strings.Repeat("*:lost,", 32) + "*:lost": "33 faults, 32 are allowed",
		strings.Repeat("x", maxText+1):           "faults of 4097 bytes",
	} {
		if all, err := ParseFaults(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, %v, want %s", text, all, err, want)
		}
	}
}

// FuzzParseFaults: the text of an accepted fault parses to the same fault.
func FuzzParseFaults(f *testing.F) {
	f.Add("NodeStageVolume:hang 30s once,CreateVolume:Unavailable 20%")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseFaults(text)
		if err != nil {
			return
		}
		for _, one := range all {
			again, err := ParseFaults(one.String())
			if err != nil || len(again) != 1 || again[0] != one {
				t.Errorf("%q: %v, %v", one.String(), again, err)
			}
		}
	})
}

// drill calls a driver with planted faults, in virtual time.
type drill struct {
	*testing.T
	*faults
	// calls is how many calls reached the driver.
	calls int
}

const (
	drilled = "a.example.com"
	create  = csipb.Controller_CreateVolume_FullMethodName
	stage   = csipb.Node_NodeStageVolume_FullMethodName
)

func (d *drill) plant(text string) {
	d.Helper()
	all, err := ParseFaults(text)
	if err == nil {
		err = d.faults.plant(drilled, all, time.Minute)
	}
	if err != nil {
		d.Fatal(err)
	}
}

// want makes a call, which ends with a code after a time, and reaches the driver if calls is 1.
func (d *drill) want(ctx context.Context, driver, method string, code codes.Code, took time.Duration, calls int) {
	d.Helper()
	begun, before := time.Now(), d.calls
	err := d.call(ctx, driver, method, func() error { d.calls++; return nil })
	if csi.Code(err) != code || time.Since(begun) != took || d.calls-before != calls {
		d.Errorf("%s: %v after %s with %d calls, want %s after %s with %d", method, err, time.Since(begun), d.calls-before,
			code, took, calls)
	}
	const next = "this fault is planted: "
	if err != nil && (!errors.Is(err, csi.ErrPlanted) || !strings.Contains(err.Error(), next) ||
		!strings.Contains(err.Error(), "'volplane driver faults a.example.com --clear'")) {
		d.Errorf("%v does not say what it is", err)
	}
}

// inDrill runs a test in such time.
func inDrill(t *testing.T, f func(context.Context, *drill)) {
	synctest.Test(t, func(t *testing.T) { f(t.Context(), &drill{T: t, faults: newFaults()}) })
}

// TestFaults: which calls match a fault, and their results.
func TestFaults(t *testing.T) {
	inDrill(t, func(ctx context.Context, d *drill) {
		rolls := []float64{90, 10}
		d.roll = func() float64 { rolls = append(rolls[1:], rolls[0]); return rolls[0] }
		d.plant("CreateVolume:Unavailable once,CreateVolume:Internal 50%,NodeStageVolume:hang 30s 2x")
		d.want(ctx, "b.example.com", create, codes.OK, 0, 1)
		d.want(ctx, drilled, csipb.Controller_DeleteVolume_FullMethodName, codes.OK, 0, 1)
		d.want(ctx, drilled, create, codes.Unavailable, 0, 0)
		d.want(ctx, drilled, create, codes.Internal, 0, 0)
		d.want(ctx, drilled, create, codes.OK, 0, 1)
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		d.want(short, drilled, stage, codes.DeadlineExceeded, 5*time.Second, 0)
		d.want(ctx, drilled, stage, codes.DeadlineExceeded, 30*time.Second, 0)
		d.want(ctx, drilled, stage, codes.OK, 0, 1)
		if all := d.list(drilled); len(all) != 3 || all[2].Hits != 2 || all[2].Fault != "NodeStageVolume:hang 30s 2x" {
			d.Errorf("%+v", all)
		}
		d.plant("*:lost")
		d.want(ctx, drilled, create, codes.Unavailable, 0, 1)
		d.want(ctx, drilled, csipb.Identity_Probe_FullMethodName, codes.OK, 0, 1)
	})
}

// TestFaultsEnd: faults end on their own, and calls that hang are released when they are cleared.
func TestFaultsEnd(t *testing.T) {
	inDrill(t, func(ctx context.Context, d *drill) {
		d.plant("*:lost")
		<-time.After(time.Minute)
		d.want(ctx, drilled, create, codes.OK, 0, 1)
		synctest.Wait()
		if all := d.names(); len(all) > 0 {
			d.Errorf("%q have faults after their end", all)
		}
		d.plant("*:hang")
		d.want(ctx, drilled, stage, codes.DeadlineExceeded, time.Minute, 0)
		d.plant("*:hang")
		time.AfterFunc(time.Second, func() {
			if err := d.faults.plant(drilled, nil, 0); err != nil {
				d.Error(err)
			}
		})
		d.want(ctx, drilled, stage, codes.DeadlineExceeded, time.Second, 0)
		ended, end := context.WithCancel(ctx)
		time.AfterFunc(time.Second, end)
		d.plant("*:hang")
		d.want(ended, drilled, stage, codes.Canceled, time.Second, 0)
		if err := d.faults.plant(drilled, []Fault{{Method: "*"}}, 25*time.Hour); err == nil {
			d.Error("faults of more than a day are planted")
		}
		d.clear(drilled)
	})
}

// following returns a function that waits for the next call of a method in the trace of a driver.
func following(t *testing.T, client Client, driver string) func(method string) Entry {
	ctx, stop := context.WithCancel(t.Context())
	seen, ended := make(chan Entry), make(chan error, 1)
	go func() {
		ended <- client.Calls(ctx, driver, true, func(e Entry) error {
			select {
			case seen <- e:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(method string) Entry {
		t.Helper()
		for {
			if e := <-seen; strings.HasSuffix(e.Method, "/"+method) {
				return e
			}
		}
	}
}

// TestServe: a command sees the calls of a process and plants faults in it, over a socket that is for its user only.
func TestServe(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	traced, client := serve(t)
	next := following(t, client, d.Name())
	c, err := csi.Dial(t.Context(), d.Socket, append(traced.Options(), csi.WithExpectedName(d.Name()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if e := next("Probe"); e.Number != 1 || e.Code != "OK" {
		t.Errorf("first: %+v", e)
	}
	if err := client.Plant(t.Context(), d.Name(), "CreateVolume:ResourceExhausted once", time.Minute); err != nil {
		t.Fatal(err)
	}
	request := &csipb.CreateVolumeRequest{
		Name: "v", Secrets: map[string]string{"k": "hunter22"},
		VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, true, "", nil),
		},
	}
	_, err = c.ControllerClient().CreateVolume(t.Context(), request)
	if !errors.Is(err, csi.ErrPlanted) || csi.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want the planted fault", err)
	}
	says(t, next("CreateVolume"), `"code":"ResourceExhausted","error":"this fault is planted`, `"secrets":{"k":"***"}`)
	if _, err = c.ControllerClient().CreateVolume(t.Context(), request); err != nil {
		t.Error(err)
	}
	says(t, next("CreateVolume"), `"code":"OK"`, `"volume_id"`)
	all, err := client.Faults(t.Context())
	if err != nil || len(all) != 1 || all[0].Hits != 1 || all[0].Driver != d.Name() {
		t.Errorf("%+v, %v", all, err)
	}
}

func says(t *testing.T, e Entry, words ...string) {
	t.Helper()
	text, err := json.Marshal(e)
	for _, word := range words {
		if err != nil || !strings.Contains(string(text), word) || strings.Contains(string(text), "hunter22") {
			t.Errorf("%s, %v, want %s and no secret", text, err, word)
		}
	}
}

func serve(t *testing.T) (*Trace, Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "t")
	if err != nil {
		t.Fatal(err)
	}
	traced, client := New(), Client{Socket(dir)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- traced.Serve(ctx, client.Socket, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	for t.Context().Err() == nil {
		if _, err := client.Faults(t.Context()); err == nil {
			break
		}
		runtime.Gosched()
	}
	for path, want := range map[string]os.FileMode{
		client.Socket: os.ModeSocket | 0o600, filepath.Dir(client.Socket): os.ModeDir | 0o700,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	return traced, client
}

// TestRefused: the error for an invalid request, and without a process that answers.
func TestRefused(t *testing.T) {
	_, client := serve(t)
	for _, test := range []struct {
		driver, faults string
		life           time.Duration
		want           string
	}{
		{"no_name", "*:lost", time.Minute, "is not a domain name"},
		{"a.example.com", "nonsense", time.Minute, "want METHOD:EFFECT"},
		{"a.example.com", "*:lost", 0, "want a time of at most 24h"},
		{"a.example.com", strings.Repeat("x", maxRequest), time.Minute, "too large"},
	} {
		err := client.Plant(t.Context(), test.driver, test.faults, test.life)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %.20s: %v, want %s", test.driver, test.faults, err, test.want)
		}
	}
	if all, err := client.Faults(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	nobody := Client{Socket(t.TempDir())}
	_, err := nobody.Faults(t.Context())
	if !errors.Is(err, ErrNoProcess) || !strings.Contains(err.Error(), "volplane up") {
		t.Error(err)
	}
}
