package doctor

import (
	"fmt"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/finding"
)

// Report is the result of an examination.
type Report struct {
	Driver       string               `json:"driver"`
	Path         string               `json:"path"`
	Hash         string               `json:"hash,omitempty"`
	Capabilities *decide.Capabilities `json:"capabilities,omitempty"`
	// Level is the worst level of all findings. Works says in which hosts the driver works, and is
	// nil if the examination did not come to its end.
	Level    finding.Level     `json:"level"`
	Works    *decide.Works     `json:"works,omitempty"`
	Findings []finding.Finding `json:"findings"`
	// Calls is the number of calls of the driver, Seconds the duration of the examination.
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// add adds a finding, unless the examination was stopped: then what was seen since is meaningless.
func (x *exam) add(f finding.Finding) {
	if x.stopped() {
		return
	}
	f.Message = decide.Redact(f.Message, &x.given)
	x.report.Findings = append(x.report.Findings, f)
}

// pass adds the result of a check that passed.
func (x *exam) pass(check, format string, args ...any) {
	x.add(finding.Finding{Check: check, Level: finding.Pass, Message: fmt.Sprintf(format, args...)})
}

// warn and fail add the result of a check that did not pass; advice is for the author of the
// driver. fail is for what breaks hosts or loses data.
func (x *exam) warn(check, advice, format string, args ...any) {
	x.add(finding.Finding{
		Check: check, Level: finding.Warn, Message: fmt.Sprintf(format, args...), Next: finding.Author.Should(advice),
	})
}

func (x *exam) fail(check string, breaks []finding.Host, advice, format string, args ...any) {
	x.add(finding.Finding{
		Check: check, Level: finding.Fail, Message: fmt.Sprintf(format, args...), Next: finding.Author.Should(advice),
		Breaks: breaks,
	})
}

// both returns all hosts, kubernetes and volplane one of them.
func both() []finding.Host       { return decide.Hosts() }
func kubernetes() []finding.Host { return []finding.Host{decide.Kubernetes} }
func volplane() []finding.Host   { return []finding.Host{decide.Volplane} }

// question is a check that passes unless something wrong was found.
type question struct {
	check string
	// breaks are the hosts in which the driver does not work if the check does not pass; without
	// any it is a warning.
	breaks []finding.Host
	// advice is for the author of the driver.
	advice string
	// passed is the message if it passes.
	passed string
}

// answer adds the result of a question, which passes if wrong is empty.
func (x *exam) answer(q question, wrong string) {
	switch {
	case wrong == "":
		x.pass(q.check, "%s", q.passed)
	case len(q.breaks) > 0:
		x.fail(q.check, q.breaks, q.advice, "%s", wrong)
	default:
		x.warn(q.check, q.advice, "%s", wrong)
	}
}

// wrongIf adds the result of a question, which passes unless it is wrong; then message says why.
func (x *exam) wrongIf(wrong bool, message string, q question) {
	if !wrong {
		message = ""
	}
	x.answer(q, message)
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
