package csi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/process/redact"
)

const (
	// slowCall is how long a call may take before it is logged, and maxFailing how many failing calls of one driver are
	// counted separately. A call that has not failed for failingLife may be forgotten.
	slowCall, maxFailing, failingLife = 10 * time.Second, 1024, time.Hour
	// levelCall is the level of calls that are done, klog's 5, at which upstream's sidecars log calls.
	levelCall = slog.Level(-5)
)

// Subject is what a call is about, as far as the caller knows more than the request contains.
type Subject struct {
	// Volume and Node are names of objects, and Claim is NAMESPACE/NAME.
	Volume, Claim, Node string
	// Object is KIND/NAME or KIND/NAMESPACE/NAME of another object that the call is for.
	Object string
}

type subjectKey struct{}

// About returns a context in which calls are about a subject.
func About(ctx context.Context, s Subject) context.Context {
	return context.WithValue(ctx, subjectKey{}, s)
}

// CallLog writes a line to a log for each call that fails or takes long. When a call is repeated, it logs the first
// failure, the second, the fourth, and so on; the others are logged at debug level. One CallLog may serve many drivers.
// It is safe for concurrent use.
type CallLog struct {
	log *slog.Logger

	mu sync.Mutex
	// failing holds, for each driver, the calls that have failed since they were done last.
	failing map[string]map[failingCall]failures
}

type failingCall struct {
	method, id string
	subject    Subject
}

type failures struct {
	number int
	last   time.Time
}

// NewCallLog returns a CallLog that writes to log.
func NewCallLog(log *slog.Logger) *CallLog {
	return &CallLog{log: log, failing: map[string]map[failingCall]failures{}}
}

// WithCallLog logs the calls to a CallLog.
func WithCallLog(l *CallLog) Option { return func(o *options) { o.calls = l } }

func withCallLog(l *CallLog, m *Memory, name func() string) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			c := Made{Driver: name(), Method: method, Request: req, Secrets: &m.secrets}
			return l.Log(ctx, c, func() (any, error) { return reply, next(ctx, method, req, reply, opts...) })
		}
	}
}

// Made is a call that is being made.
type Made struct {
	Driver string
	// Method is the full name of the gRPC method.
	Method string
	// Request is a message of CSI.
	Request any
	// Secrets are those of the request and of earlier ones.
	Secrets *redact.Secrets
}

// Log makes a call by do, whose error must hold no secrets, and logs it if it fails or takes long.
func (l *CallLog) Log(ctx context.Context, c Made, do func() (answer any, err error)) error {
	start, key := time.Now(), keyOf(ctx, c)
	waiting := time.AfterFunc(slowCall, func() {
		attempt := l.failures(c.Driver, key) + 1
		l.write(ctx, levelOf(c, attempt, slog.LevelInfo), "waiting for the answer of a driver", c, "attempt", attempt,
			"waited", slowCall)
	})
	answer, err := do()
	waiting.Stop()
	took := time.Since(start)
	switch {
	case err != nil:
		attempt := l.failed(c.Driver, key)
		level := levelOf(c, attempt, slog.LevelWarn)
		if errors.Is(ctx.Err(), context.Canceled) {
			level = slog.LevelDebug // the caller no longer waits for it
		}
		l.write(ctx, level, "a call to a driver has failed", c, "attempt", attempt, "duration", rounded(took),
			"code", Code(err).String(), "err", line(status.Convert(err).Message()))
		return err
	case took >= slowCall:
		l.write(ctx, slog.LevelInfo, "a call to a driver took long", c, "duration", rounded(took))
	case l.log.Enabled(ctx, levelCall):
		l.write(ctx, levelCall, "a call to a driver is done", c, "duration", rounded(took),
			"request", string(shown(c.Request, c.Secrets)), "answer", string(shown(answer, c.Secrets)))
	}
	l.forget(c.Driver, key)
	return nil
}

func rounded(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

// levelOf returns the log level of an attempt, which is level for the first, the second, the fourth, and so on.
func levelOf(c Made, attempt int, level slog.Level) slog.Level {
	if attempt&(attempt-1) != 0 || isQuestion(c.Method) {
		return slog.LevelDebug
	}
	return level
}

// failures returns how often a call has failed since it was done last.
func (l *CallLog) failures(driver string, key failingCall) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failing[driver][key].number
}

// failed counts a failure. Beyond the limit, failing calls are counted together by their method.
func (l *CallLog) failed(driver string, key failingCall) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.failing[driver]
	if of == nil {
		of = map[failingCall]failures{}
		l.failing[driver] = of
	}
	if of[key].number == 0 && len(of) >= maxFailing {
		maps.DeleteFunc(of, func(_ failingCall, f failures) bool { return time.Since(f.last) > failingLife })
		if len(of) >= maxFailing {
			key = failingCall{method: key.method}
		}
	}
	of[key] = failures{of[key].number + 1, time.Now()}
	return of[key].number
}

func (l *CallLog) forget(driver string, key failingCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.failing[driver], key); len(l.failing[driver]) == 0 {
		delete(l.failing, driver)
	}
}

// isQuestion says whether a call only identifies the driver while a connection to it is made. The code that makes the
// connection reports what is wrong with it.
func isQuestion(method string) bool {
	return strings.HasPrefix(method, "/"+csipb.Identity_ServiceDesc.ServiceName+"/") ||
		strings.HasSuffix(method, "GetCapabilities") || method == csipb.Node_NodeGetInfo_FullMethodName
}

func keyOf(ctx context.Context, c Made) failingCall {
	s, _ := ctx.Value(subjectKey{}).(Subject)
	return failingCall{c.Method, volumeOf(c.Request), s}
}

// write writes a line with what is known of a call. Text from the driver or its caller is redacted.
func (l *CallLog) write(ctx context.Context, level slog.Level, text string, c Made, more ...any) {
	if !l.log.Enabled(ctx, level) {
		return
	}
	key := keyOf(ctx, c)
	all := []any{"driver", c.Driver, "call", path.Base(c.Method)}
	_, id, _ := strings.Cut(key.id, " ")
	for _, a := range []struct{ name, text string }{
		{"volume", key.subject.Volume},
		{"claim", key.subject.Claim},
		{"node", key.subject.Node},
		{"object", key.subject.Object},
		{"id", line(c.Secrets.Hide(id))},
	} {
		if a.text != "" {
			all = append(all, a.name, a.text)
		}
	}
	l.log.Log(ctx, level, text, append(all, more...)...)
}

// IsAnswer says whether an error is nothing but the error of a call that was made, which a CallLog has logged already.
func IsAnswer(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each part is looked at
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if !IsAnswer(part) {
				return false
			}
		}
		return true
	case interface{ GRPCStatus() *status.Status }:
		return !errors.Is(err, ErrHeld) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrTerm)
	case interface{ Unwrap() error }:
		return IsAnswer(e.Unwrap())
	}
	return false
}
