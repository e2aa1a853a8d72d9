package doctor

import (
	"fmt"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// Report is the result of an examination.
type Report struct {
	Driver       string               `json:"driver"`
	Path         string               `json:"path"`
	Hash         string               `json:"hash,omitempty"`
	Capabilities *decide.Capabilities `json:"capabilities,omitempty"`
	// Level is the worst level of all findings.
	Level    decide.Level     `json:"level"`
	Findings []decide.Finding `json:"findings"`
	// Calls is the number of calls of the driver, Seconds the duration of the examination.
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// add adds a finding, unless the examination was stopped: then what was seen since is meaningless.
func (x *exam) add(f decide.Finding) {
	if x.stopped() {
		return
	}
	f.Message = decide.Redact(f.Message, &x.given)
	x.report.Findings = append(x.report.Findings, f)
}

// pass, warn and fail add the result of a check; next is the advice for the author of the driver.
func (x *exam) pass(check, format string, args ...any) {
	x.add(decide.Finding{Check: check, Level: decide.Pass, Message: fmt.Sprintf(format, args...)})
}

func (x *exam) warn(check, next, format string, args ...any) {
	x.add(decide.Finding{Check: check, Level: decide.Warn, Message: fmt.Sprintf(format, args...), Next: next})
}

func (x *exam) fail(check, next, format string, args ...any) {
	x.add(decide.Finding{Check: check, Level: decide.Fail, Message: fmt.Sprintf(format, args...), Next: next})
}

// question is a check that passes unless something wrong was found.
type question struct {
	check string
	// otherwise is the level if it does not pass, and next the advice then.
	otherwise decide.Level
	next      string
	// passed is the message if it passes.
	passed string
}

// answer adds the result of a question, which passes if wrong is empty.
func (x *exam) answer(q question, wrong string) {
	if wrong == "" {
		x.pass(q.check, "%s", q.passed)
		return
	}
	x.add(decide.Finding{Check: q.check, Level: q.otherwise, Message: wrong, Next: q.next})
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
