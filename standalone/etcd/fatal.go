package etcd

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ending records the first error that stops etcd; later errors are its consequences.
type ending struct {
	why  chan error
	told atomic.Bool
}

func (e *ending) tell(err error) {
	if e.told.CompareAndSwap(false, true) {
		e.why <- err
	}
}

// OnWrite ends the goroutine of etcd that logs a fatal error. etcd itself would exit the process or panic; instead, the
// process reports the error and stops properly.
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

// logger returns a logger that discards everything.
func (e *ending) logger() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithFatalHook(e), zap.WithPanicHook(e))
}
