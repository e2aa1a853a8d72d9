package nodesidecar

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ended runs a command line that ends by itself, and returns its exit code and what it printed.
func ended(t *testing.T, line string) string {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), patience)
	defer end()
	var out, err strings.Builder
	code := Main(ctx, strings.Fields(line), Streams{Out: &out, Err: &err}, "v1")
	if ctx.Err() != nil {
		t.Errorf("%s does not end", line)
	}
	said, _, _ := strings.Cut(out.String()+err.String(), "\n")
	return fmt.Sprintf("%d %s", code, said)
}

// TestCommandLines: the exit code and the first line of what exits immediately.
func TestCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"/livenessprobe --version":                                        "0 livenessprobe v1",
		"/livenessprobe -x":                                               "2 error: unknown flag: --x",
		"/livenessprobe --help":                                           "0 Usage of livenessprobe, which",
		"/livenessprobe --logging-format=xml":                             "1 error: --logging-format",
		"/csi-node-driver-registrar --mode=kubelet-registration-probe":    "0 ",
		"/volplane-node-sidecars --csi-address=/x":                        "2 error: no program is chosen",
		"/volplane-node-sidecars --controllers=attacher":                  `2 error: "attacher" is not a program of a node`,
		"/volplane-node-sidecars --help":                                  "2 error: no program is chosen",
		"/livenessprobe --http-endpoint=256.0.0.1:1 --csi-address=/x --v": "2 error: flag needs an argument: --v",
		"/livenessprobe --http-endpoint=:http:x --csi-address=/x":         "1 time=",
	} {
		if got := ended(t, line); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestMemoryIsGivenBack: soon after something was allocated the memory is given back, and not again while nothing is.
func TestMemoryIsGivenBack(t *testing.T) {
	var held []byte
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { _ = freeMemory(ctx) }()
		given := func(after time.Duration) uint32 {
			var before, now runtime.MemStats
			runtime.ReadMemStats(&before)
			<-time.After(after)
			synctest.Wait()
			runtime.ReadMemStats(&now)
			return now.NumForcedGC - before.NumForcedGC
		}
		given(freePause + 1)
		held = make([]byte, 2*enoughGarbage)
		if n := given(freePause); n != 1 {
			t.Errorf("memory was given back %d times after it was allocated", n)
		}
		if n := given(100 * freePause); n != 0 {
			t.Errorf("memory was given back %d times while nothing was allocated", n)
		}
	})
	runtime.KeepAlive(held)
}
