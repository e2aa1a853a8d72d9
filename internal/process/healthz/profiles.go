package healthz

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

const (
	profilesPath = "/debug/pprof/"
	// profileTime is how long the processor is watched unless a request says otherwise, and maxProfileTime the longest.
	profileTime, maxProfileTime = 30 * time.Second, 5 * time.Minute
	octets                      = "application/octet-stream"
)

func notFound(context.Context, url.Values) Answer {
	return Text(http.StatusNotFound, "404 page not found")
}

// Profiles adds the profiles of the program below /debug/pprof/, as go tool pprof reads them.
func (p Paths) Profiles() {
	p[profilesPath] = func(context.Context, url.Values) Answer {
		var names strings.Builder
		for _, profile := range pprof.Profiles() {
			fmt.Fprintf(&names, "%s%s\n", profilesPath, profile.Name())
		}
		return Text(http.StatusOK, names.String()+profilesPath+"profile\n")
	}
	p[profilesPath+"cmdline"] = func(context.Context, url.Values) Answer {
		return Text(http.StatusOK, strings.Join(os.Args, "\x00"))
	}
	p[profilesPath+"profile"] = processorProfile
	for _, profile := range pprof.Profiles() {
		p[profilesPath+profile.Name()] = func(_ context.Context, query url.Values) Answer {
			var body bytes.Buffer
			debug, _ := strconv.Atoi(query.Get("debug")) // 0 unless it is a number
			if err := profile.WriteTo(&body, debug); err != nil {
				return Text(http.StatusInternalServerError, err.Error())
			}
			if debug > 0 {
				return Answer{Code: http.StatusOK, Body: body.Bytes()}
			}
			return Answer{Code: http.StatusOK, Type: octets, Body: body.Bytes()}
		}
	}
}

// processorProfile says what the processor does for some seconds.
func processorProfile(ctx context.Context, query url.Values) Answer {
	seconds, _ := strconv.Atoi(query.Get("seconds")) // 0 unless it is a number
	pause := min(cmp.Or(time.Duration(max(seconds, 0))*time.Second, profileTime), maxProfileTime)
	var body bytes.Buffer
	if err := pprof.StartCPUProfile(&body); err != nil {
		return Text(http.StatusInternalServerError, err.Error())
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
	pprof.StopCPUProfile()
	return Answer{Code: http.StatusOK, Type: octets, Body: body.Bytes()}
}
