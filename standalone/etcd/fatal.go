package etcd

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ending tells why etcd cannot go on: the first reason, those that follow from
// it are nobody's business.
type ending struct {
	why  chan error
	told atomic.Bool
}

func (e *ending) tell(err error) {
	if e.told.CompareAndSwap(false, true) {
		e.why <- err
	}
}

// OnWrite ends a goroutine of etcd that has met what etcd cannot survive. etcd
// itself ends the process then, or panics where nobody could catch it; so the
// process says why it ends, and ends as always.
func (e *ending) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	e.tell(err)
	runtime.Goexit()
}

// logger returns a log that keeps nothing.
func (e *ending) logger() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithFatalHook(e), zap.WithPanicHook(e))
}
