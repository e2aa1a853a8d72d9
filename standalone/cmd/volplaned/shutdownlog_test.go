package main

import (
	"bytes"
	"context"
	"testing"

	"k8s.io/klog/v2"
)

// TestShutdownFilter: errors of libraries are logged until the process is asked to end.
// volplane's own errors are always logged, and with -v so are all others.
func TestShutdownFilter(t *testing.T) {
	for verbosity, after := range map[int]bool{0: false, 1: true} {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		log := newLog(ctx, &out, verbosity)
		told := func(say func()) bool {
			out.Reset()
			say()
			return out.Len() > 0
		}
		library := func() { klog.ErrorS(context.Canceled, "broken off") }
		if !told(library) {
			t.Errorf("verbosity %d: an error while all runs is not told", verbosity)
		}
		cancel()
		if told(library) != after {
			t.Errorf("verbosity %d: told at the end: %v, want %v", verbosity, !after, after)
		}
		if !told(func() { log.Error("ours") }) {
			t.Error("our own error is not told at the end")
		}
	}
}
