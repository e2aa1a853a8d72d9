package main

import (
	"context"
	"log/slog"
)

// shutdownFilter drops what libraries log after the process was asked to end: they
// then report the end of their requests as errors.
type shutdownFilter struct {
	slog.Handler
	process context.Context //nolint:containedctx // only its end matters
}

// Handle writes a record unless the process was asked to end. klog does not call
// Enabled for errors, so they have to be dropped here.
func (c shutdownFilter) Handle(ctx context.Context, r slog.Record) error {
	if c.process.Err() == nil {
		return c.Handler.Handle(ctx, r)
	}
	return nil
}

// WithAttrs returns a filter with more attributes.
func (c shutdownFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return shutdownFilter{c.Handler.WithAttrs(attrs), c.process}
}

// WithGroup returns a filter with a group.
func (c shutdownFilter) WithGroup(name string) slog.Handler {
	return shutdownFilter{c.Handler.WithGroup(name), c.process}
}
