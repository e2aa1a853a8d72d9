package doctor

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// ofAllCalls checks what all calls have in common.
func (x *exam) ofAllCalls() {
	x.answerForAll(question{
		"standard-error", decide.Fail, "send messages to a log, or into the message of the answer",
		"nothing is printed on standard error",
	}, func(c call) string {
		if text := bytes.TrimSpace(c.stderr); len(text) > 0 {
			return fmt.Sprintf("prints on standard error, which Kubernetes takes for a part of the answer: %q",
				text[:min(len(text), 100)])
		}
		return ""
	})
	x.answerForAll(question{
		"one-answer", decide.Fail, "print the answer only, and send what programs print to /dev/null",
		"each call prints one JSON object on standard output and nothing else",
	}, oneAnswer)
	x.answerForAll(question{"status", decide.Fail, "spell it as these three",
		"each status is Success, Failure or Not supported"},
		status)
	x.answerForAll(question{
		"exit-code", decide.Fail, "exit with 0 after Success, with 1 otherwise",
		"the exit code is 0 for Success, 1 otherwise",
	}, contradiction)
	x.answerForAll(question{"exit-code-1", decide.Warn, "exit with 1", ""}, func(c call) string {
		switch {
		case c.err != nil || c.answer.Status == decide.Success || c.exit == 1:
			return ""
		}
		return fmt.Sprintf("ends with %d, hosts expect 1 for everything but Success", c.exit)
	})
	x.answerForAll(question{
		"output-kept-open", decide.Fail, "start it with </dev/null >/dev/null 2>&1", "nobody keeps the output open",
	}, func(c call) string {
		if c.holds {
			return "leaves a process that keeps its output open: Kubernetes waits for that"
		}
		return ""
	})
	x.answerForAll(question{"secrets", decide.Fail, "print nothing of the JSON, not even in a message",
		"no secret is printed"},
		x.secret)
}

// answerForAll answers a question about all calls, with the first call that fails it.
func (x *exam) answerForAll(q question, wrong func(call) string) {
	first, more := "", 0
	for _, c := range x.calls {
		why := wrong(c)
		switch {
		case why != "" && first == "":
			first = string(c.op) + " " + why
		case why != "":
			more++
		}
	}
	if more > 0 {
		first += fmt.Sprintf(" (and so in %d more calls)", more)
	}
	if first != "" || q.passed != "" {
		x.answer(q, first)
	}
}

// oneAnswer requires exactly one JSON object on standard output. A driver may print nothing for an
// unknown operation.
func oneAnswer(c call) string {
	text := bytes.TrimSpace(c.stdout)
	all := objects(text)
	switch {
	case c.overdue || c.exit < 0:
		return ""
	case len(text) == 0 && c.op == noOperation:
		return ""
	case len(text) == 0:
		return "prints nothing"
	case len(all) == 0:
		return fmt.Sprintf("prints no JSON: %q", text[:min(len(text), 100)])
	case len(all) > 1:
		return fmt.Sprintf("prints %d JSON objects", len(all))
	case text[0] != '{' || text[len(text)-1] != '}':
		return fmt.Sprintf("prints more than JSON: %q", text[:min(len(text), 100)])
	}
	return ""
}

// statusOf returns the status of a call as the driver spelled it. The key may have any case.
func statusOf(c call) (string, bool) {
	all := objects(c.stdout)
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

// status requires one of the three statuses in the right spelling.
func status(c call) string {
	word, found := statusOf(c)
	switch {
	case len(objects(c.stdout)) == 0:
		return ""
	case !found:
		return "answers without \"status\""
	case slices.Contains([]string{string(decide.Success), string(decide.Failure), string(decide.NotSupported)}, word):
		return ""
	}
	return fmt.Sprintf("answers the status %q: Kubernetes knows \"Success\", \"Failure\" and \"Not supported\" only", word)
}

// contradiction requires an exit code that agrees with the status.
func contradiction(c call) string {
	word, found := statusOf(c)
	switch {
	case !found || c.exit < 0:
		return ""
	case strings.EqualFold(word, string(decide.Success)) && c.exit != 0:
		return fmt.Sprintf("answers Success and ends with %d: Kubernetes takes that for an error", c.exit)
	case strings.EqualFold(word, string(decide.Failure)) && c.exit == 0:
		return "answers Failure and ends with 0"
	}
	return ""
}

// secret requires that the output has no value of a secret.
func (x *exam) secret(c call) string {
	const short = 8 // it could be there by chance
	for _, key := range slices.Sorted(maps.Keys(x.secrets)) {
		value := x.secrets[key]
		if len(value) < short {
			continue
		}
		quoted, err := json.Marshal(value)
		if err != nil {
			continue
		}
		encoded := base64.RawStdEncoding.EncodeToString([]byte(value))
		for _, form := range []string{value, encoded, string(quoted[1 : len(quoted)-1])} {
			if bytes.Contains(c.stdout, []byte(form)) || bytes.Contains(c.stderr, []byte(form)) {
				return fmt.Sprintf("prints the value of secret %q", key)
			}
		}
	}
	return ""
}
