package doctor

import (
	"fmt"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// Report is everything that an examination found.
type Report struct {
	Driver       string               `json:"driver"`
	Path         string               `json:"path"`
	Hash         string               `json:"hash,omitempty"`
	Capabilities *decide.Capabilities `json:"capabilities,omitempty"`
	// Level is the worst of all findings.
	Level    decide.Level     `json:"level"`
	Findings []decide.Finding `json:"findings"`
	// Calls is how often the driver was called, Seconds how long all of it took.
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// add writes down a finding. When the examination was stopped, what was seen
// since means nothing.
func (x *exam) add(f decide.Finding) {
	if x.stopped() {
		return
	}
	f.Message = decide.Redact(f.Message, &x.given)
	x.report.Findings = append(x.report.Findings, f)
}

// pass, warn and fail write down how a check ended; next says what the author of
// the driver is to do.
func (x *exam) pass(check, format string, args ...any) {
	x.add(decide.Finding{Check: check, Level: decide.Pass, Message: fmt.Sprintf(format, args...)})
}

func (x *exam) warn(check, next, format string, args ...any) {
	x.add(decide.Finding{Check: check, Level: decide.Warn, Message: fmt.Sprintf(format, args...), Next: next})
}

func (x *exam) fail(check, next, format string, args ...any) {
	x.add(decide.Finding{Check: check, Level: decide.Fail, Message: fmt.Sprintf(format, args...), Next: next})
}

// question is a check that is passed unless there is something wrong.
type question struct {
	check string
	// otherwise is how bad it is if not, and next what to do then.
	otherwise decide.Level
	next      string
	// passed is what there is to say when nothing is wrong.
	passed string
}

// answer writes down the answer to a question; wrong is empty when it is passed.
func (x *exam) answer(q question, wrong string) {
	if wrong == "" {
		x.pass(q.check, "%s", q.passed)
		return
	}
	x.add(decide.Finding{Check: q.check, Level: q.otherwise, Message: wrong, Next: q.next})
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
