package program

import (
	"context"
	"io"
	"log/slog"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/sidecar"
)

// NewLog returns a program's log, in a format of --logging-format and as verbose as -v says, and makes the libraries
// use it. Without -v, libraries are silent once the process ends, which ending says.
func NewLog(to io.Writer, format string, verbosity int, ending func() bool) *slog.Logger {
	own, libraries := sidecar.Levels(verbosity)
	theirs := sidecar.LogTo(format, to, libraries)
	if verbosity <= 0 {
		theirs = endFilter{theirs, ending}
	}
	// Set changes klog's own level, whichever Level it is called for; it fails for what is no number only.
	_ = new(klog.Level).Set(strconv.Itoa(max(0, int(-libraries))))
	klog.SetLogger(logr.FromSlogHandler(theirs))
	return slog.New(sidecar.LogTo(format, to, own))
}

// endFilter drops what libraries log once the process ends: they then report the end of their requests, which was asked
// for, as errors.
type endFilter struct {
	slog.Handler
	ending func() bool
}

// Handle writes a record unless the process ends. klog does not call Enabled for errors, so they have to be dropped
// here.
func (e endFilter) Handle(ctx context.Context, r slog.Record) error {
	if e.ending() {
		return nil
	}
	return e.Handler.Handle(ctx, r)
}

// WithAttrs returns a filter with more attributes.
func (e endFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return endFilter{e.Handler.WithAttrs(attrs), e.ending}
}

// WithGroup returns a filter with a group.
func (e endFilter) WithGroup(name string) slog.Handler {
	return endFilter{e.Handler.WithGroup(name), e.ending}
}
