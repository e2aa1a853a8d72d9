package main

import (
	"context"
	"log/slog"
)

// calm is the log of the libraries. Once the process was asked to end, what they
// call errors is that their calls are broken off, which is no error.
type calm struct {
	slog.Handler
	asked context.Context //nolint:containedctx // its end is all that counts
}

// Handle writes a record as long as nobody has asked for the end. Errors come
// here without a question whether they are wanted.
func (c calm) Handle(ctx context.Context, r slog.Record) error {
	if c.asked.Err() == nil {
		return c.Handler.Handle(ctx, r)
	}
	return nil
}

// WithAttrs returns one that is as calm.
func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calm{c.Handler.WithAttrs(attrs), c.asked}
}

// WithGroup returns one that is as calm.
func (c calm) WithGroup(name string) slog.Handler { return calm{c.Handler.WithGroup(name), c.asked} }
