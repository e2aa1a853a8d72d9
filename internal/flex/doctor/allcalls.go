package doctor

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/finding"
)

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
