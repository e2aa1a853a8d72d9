package doctor

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	// breaks are the hosts in which the driver does not work if the check does not pass; without any it is a warning.
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

// ofAllCalls checks what all calls have in common that hosts make.
func (x *exam) ofAllCalls() {
	var judged []decide.Call
	for _, c := range x.calls {
		if c.odd || c.overdue {
			continue
		}
		// Findings quote the output.
		c.Stdout, c.Stderr = []byte(x.given.Hide(string(c.Stdout))), []byte(x.given.Hide(string(c.Stderr)))
		judged = append(judged, c.Call)
	}
	for _, f := range decide.JudgeForm(judged) {
		x.add(f)
	}
	x.ofOutputs("output-kept-open", "start it with </dev/null >/dev/null 2>&1", "no process keeps the output open",
		kubernetes(), func(c call) string {
			if c.holds && !c.odd {
				return "leaves a process that keeps its output open: Kubernetes waits for that"
			}
			return ""
		})
	// It stops no host, but who may read events may not read Secrets.
	x.ofOutputs("secrets", "print nothing of the JSON, not even in a message", "no secret is printed", nil, x.secret)
}

// ofOutputs fails a check for the first call with which something is wrong.
func (x *exam) ofOutputs(check, advice, passed string, breaks []finding.Host, wrong func(call) string) {
	for _, c := range x.calls {
		if why := wrong(c); why != "" {
			x.fail(check, breaks, advice, "%s %s", c.Op, why)
			return
		}
	}
	x.pass(check, "%s", passed)
}

// userKey is the key of a Secret's value that is not confidential, in Secrets of the type
// kubernetes.io/basic-auth and in those of most drivers.
const userKey = "username"

// secret requires that the output has no value of a secret.
func (x *exam) secret(c call) string {
	const short = 8 // it could be there by chance
	for _, key := range slices.Sorted(maps.Keys(x.Secrets)) {
		value := x.Secrets[key]
		if len(value) < short || key == userKey {
			continue
		}
		quoted, err := json.Marshal(value)
		if err != nil {
			continue
		}
		encoded := base64.RawStdEncoding.EncodeToString([]byte(value))
		for _, form := range []string{value, encoded, string(quoted[1 : len(quoted)-1])} {
			if bytes.Contains(c.Stdout, []byte(form)) || bytes.Contains(c.Stderr, []byte(form)) {
				return fmt.Sprintf("prints the value of secret %q", key)
			}
		}
	}
	return ""
}
