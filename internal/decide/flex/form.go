package flex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/workshop/finding"
)

// question is a check of the form of calls. wrong returns what is wrong with a call, or "".
type question struct {
	check, passed, advice string
	wrong                 func(Call) string
	// harmless says that no host minds.
	harmless bool
}

func questions() []question {
	return []question{
		{
			check: "standard-error", passed: "nothing is printed on standard error", wrong: noise,
			advice: "send messages to a log, or into the message of the answer",
		},
		{
			check: "one-answer", passed: "each call prints one JSON object on standard output and nothing else",
			advice: "print the answer only, and send what programs print to /dev/null", wrong: oneAnswer,
		},
		{
			check: "status", passed: "each status is Success, Failure or Not supported", advice: "spell it as these three",
			wrong: spelling,
		},
		{
			check: "exit-code", passed: "the exit code is 0 for Success, 1 otherwise",
			advice: "exit with 0 after Success, with 1 otherwise", wrong: contradiction,
		},
		{check: "exit-code-1", advice: "exit with 1", wrong: otherCode, harmless: true},
	}
}

// JudgeForm returns the findings about the form of calls, one for each check. What a host misreads
// breaks the driver there; the rest is a matter of form. Messages may hold secrets.
func JudgeForm(calls []Call) []finding.Finding {
	var all []finding.Finding
	for _, q := range questions() {
		if f := q.judge(calls); f.Message != "" {
			all = append(all, f)
		}
	}
	return all
}

// judge returns the finding about the first call that breaks a host, or that has the wrong form.
func (q question) judge(calls []Call) finding.Finding {
	f := finding.Finding{Check: q.check, Level: finding.Pass, Message: q.passed}
	more := 0
	for _, c := range calls {
		why := q.wrong(c)
		if why == "" {
			continue
		}
		var breaks []finding.Host
		if !q.harmless {
			breaks = c.MisreadBy()
		}
		if f.Level != finding.Pass {
			more++
		}
		if f.Level == finding.Pass || len(breaks) > len(f.Breaks) {
			f.Level, f.Breaks = finding.Warn, breaks
			f.Message, f.Next = string(c.Op)+" "+why, finding.Author.Should(q.advice)
		}
	}
	if len(f.Breaks) > 0 {
		f.Level = finding.Fail
	}
	if more > 0 {
		f.Message += fmt.Sprintf(" (and so in %d more calls)", more)
	}
	return f
}

func noise(c Call) string {
	if len(bytes.TrimSpace(c.Stderr)) == 0 {
		return ""
	}
	return "prints on standard error, which Kubernetes treats as a part of the answer: " + excerpt(c.Stderr)
}

// oneAnswer requires exactly one JSON object on standard output, or an answer on standard error.
func oneAnswer(c Call) string {
	out := bytes.TrimSpace(c.Stdout)
	all := objects(out)
	switch {
	case c.Exit < 0, len(out) == 0 && len(objects(c.Stderr)) > 0:
		return ""
	case len(out) == 0:
		return "prints nothing"
	case len(all) == 0:
		return "does not print JSON: " + excerpt(out)
	case len(all) > 1:
		return fmt.Sprintf("prints %d JSON objects", len(all))
	case out[0] != '{' || out[len(out)-1] != '}':
		return "prints more than JSON: " + excerpt(out)
	}
	return ""
}

// spelled returns the status of a call as the driver spelled it. The key may have any case.
func spelled(c Call) (string, bool) {
	all := objects(c.Stdout)
	if len(all) == 0 {
		return "", false
	}
	for key, value := range all[len(all)-1] {
		if strings.EqualFold(key, "status") {
			return strings.Trim(string(value), `"`), true
		}
	}
	return "", false
}

// spelling requires one of the three statuses in the right spelling.
func spelling(c Call) string {
	word, found := spelled(c)
	switch {
	case len(objects(c.Stdout)) == 0:
		return ""
	case !found:
		return "answers without \"status\""
	case slices.Contains([]string{string(Success), string(Failure), string(NotSupported)}, word):
		return ""
	}
	return fmt.Sprintf("answers the status %q: Kubernetes knows \"Success\", \"Failure\" and \"Not supported\" only", word)
}

// contradiction requires an exit code that agrees with the status.
func contradiction(c Call) string {
	word, found := spelled(c)
	switch {
	case !found || c.Exit < 0:
		return ""
	case strings.EqualFold(word, string(Success)) && c.Exit != 0:
		return fmt.Sprintf("answers Success and ends with %d, which hosts treat as an error", c.Exit)
	case strings.EqualFold(word, string(Failure)) && c.Exit == 0:
		return "answers Failure and ends with 0"
	}
	return ""
}

func otherCode(c Call) string {
	if a, err := c.Read(); err != nil || a.Status == Success || c.Exit == 1 {
		return ""
	}
	return fmt.Sprintf("ends with %d, and should end with 1 after everything but Success", c.Exit)
}

// sayUnsupported is the advice about operations that a driver does not know.
const sayUnsupported = `print {"status":"Not supported"} and exit with 1`

// JudgeUnknown returns the finding about a call of an operation that does not exist. No host makes
// it today; a later one may have new operations.
func JudgeUnknown(c Call) finding.Finding {
	f := finding.Finding{Check: "unknown-operation", Level: finding.Warn, Next: finding.Author.Should(sayUnsupported)}
	switch a, err := c.Read(); {
	case len(bytes.TrimSpace(c.Stdout)) == 0 && len(bytes.TrimSpace(c.Stderr)) == 0:
		f.Message = "an operation that does not exist gets no answer"
	case err != nil:
		f.Message = fmt.Sprintf("an operation that does not exist should be \"Not supported\": %v", err)
	case a.Status == Success:
		f.Message = "an operation that does not exist succeeds"
	case a.Status == Failure:
		f.Message = "an operation that does not exist should be \"Not supported\", and fails"
	case c.Exit != 1:
		f.Message = fmt.Sprintf("an operation that does not exist is Not supported, and ends with %d instead of 1", c.Exit)
	default:
		return finding.Finding{
			Check: "unknown-operation", Level: finding.Pass, Message: "an operation that does not exist is Not supported",
		}
	}
	return f
}

// sayCapabilities is the advice about init's answer.
const sayCapabilities = `answer "capabilities":{"attach":false} if the driver does not attach, {"attach":true} if it does`

// JudgeCapabilities returns the finding about the capabilities in the answer of an init that
// succeeded, as they were printed.
func JudgeCapabilities(c Call) finding.Finding {
	f := finding.Finding{Check: "init-capabilities", Level: finding.Warn, Next: finding.Author.Should(sayCapabilities)}
	p, _ := find(c.Stdout, c.Stderr)
	switch raw := bytes.TrimSpace(p.Capabilities); {
	case len(raw) == 0:
		f.Message = "init reports no capabilities: a host uses its defaults, among them that the driver attaches"
		return f
	case bytes.Equal(raw, []byte("null")):
		f.Level, f.Breaks = finding.Fail, []finding.Host{Kubernetes}
		f.Message = "\"capabilities\" is null, which ends Kubernetes' kubelet"
		return f
	}
	var said map[string]json.RawMessage
	// Init has succeeded, so that they are an object.
	_ = json.Unmarshal(p.Capabilities, &said)
	has := func(name string) bool {
		for key := range said {
			if strings.EqualFold(key, name) {
				return true
			}
		}
		return false
	}
	known := []string{"attach", "selinuxRelabel", "supportsMetrics", "fsGroup", "requiresFSResize"}
	var odd []string
	for key := range said {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			odd = append(odd, excerpt([]byte(key)))
		}
	}
	slices.Sort(odd)
	switch a, _ := c.Read(); {
	case !has("attach"):
		f.Message = "\"attach\" is missing, and true by default"
	case len(odd) > 0:
		f.Message = "hosts do not know the capability " + strings.Join(odd, ", ")
	default:
		f.Level, f.Next = finding.Pass, ""
		f.Message = fmt.Sprintf("an object; attach is %v", a.Capabilities.Attach)
	}
	return f
}

// maxBraces is how many braces of an output may begin no object before the search gives up.
const maxBraces = 100

// objects returns all JSON objects in an output.
func objects(b []byte) (all []map[string]json.RawMessage) {
	for tries := 0; tries < maxBraces; {
		start := bytes.IndexByte(b, '{')
		if start < 0 {
			return all
		}
		b = b[start:]
		var o map[string]json.RawMessage
		d := json.NewDecoder(bytes.NewReader(b))
		if d.Decode(&o) != nil {
			b = b[1:]
			tries++
			continue
		}
		all, b = append(all, o), b[d.InputOffset():]
	}
	return all
}
