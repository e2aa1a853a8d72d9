package options

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/sidecar"
)

// NewLog returns a program's log, in a format of --logging-format and as verbose as -v says, and makes the libraries
// use it. Without -v, libraries are silent about requests that were given up, and about everything once the process
// ends, which ending says.
func NewLog(to io.Writer, format string, verbosity int, ending func() bool) *slog.Logger {
	own, libraries := sidecar.Levels(verbosity)
	theirs := sidecar.LogTo(format, to, libraries)
	if verbosity <= 0 {
		theirs = quiet{theirs, ending}
	}
	// Set changes klog's own level, whichever Level it is called for; it fails only for what is not a number.
	_ = new(klog.Level).Set(strconv.Itoa(max(0, int(-libraries))))
	klog.SetLogger(logr.FromSlogHandler(theirs))
	return slog.New(sidecar.LogTo(format, to, own))
}

// quiet drops what libraries log as errors although it was intended: that a request was given up, as the API server
// does of a client that leaves while its watch begins, and, once the process ends, the end of all their requests.
type quiet struct {
	slog.Handler
	ending func() bool
}

// Handle writes a record, or drops it. klog does not call Enabled for errors, so they have to be dropped here.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if q.ending() || strings.HasSuffix(r.Message, context.Canceled.Error()) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs returns a filter with more attributes.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quiet{q.Handler.WithAttrs(attrs), q.ending}
}

// WithGroup returns a filter with a group.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name), q.ending} }
