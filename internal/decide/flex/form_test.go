package flex

import (
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/workshop/finding"
)

const (
	fails = `{"status":"Failure","message":"no"}`
	leave = `{"status":"Not supported"}`
)

// TestReadByKubernetes: all output is one JSON text, letter by letter.
func TestReadByKubernetes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		exit           int
		stdout, stderr string
		want           Status
	}{
		{0, ok, "", Success},
		{0, "", ok, Success},
		{0, " \n" + ok + "\n", "\n", Success},
		{0, `{"Status":"Success","MESSAGE":"m","more":[1]}`, "", Success},
		{1, ok, "", Failure},
		{0, ok, "trace", Failure},
		{0, "trace" + ok, "", Failure},
		{0, ok + ok, "", Failure},
		{0, "", "", Failure},
		{0, `{"status":"success"}`, "", Failure},
		{0, `{"status":"Success","device":1}`, "", Failure},
		{0, `{"status":"Success","attached":"true"}`, "", Failure},
		{0, `{"status":"Success","volumeNewSize":"1"}`, "", Failure},
		{0, `{"status":"Success","capabilities":{"attach":"no"}}`, "", Failure},
		{0, `{"status":"Success","capabilities":null}`, "", Success},
		{0, leave, "", NotSupported},
		{1, leave, "", NotSupported},
		{2, leave, "", NotSupported},
		{1, `{"status":"Not Supported"}`, "", Failure},
		{1, fails, "", Failure},
		{0, fails, "", Failure},
	} {
		call := Call{Op: OpMount, Exit: c.exit, Stdout: []byte(c.stdout), Stderr: []byte(c.stderr)}
		if got := call.ReadByKubernetes(); got != c.want {
			t.Errorf("%d, %q, %q: %s, want %s", c.exit, c.stdout, c.stderr, got, c.want)
		}
	}
}

// misread is a call and the hosts that take it for a failure, though it is none.
type misread struct {
	name           string
	op             Operation
	exit           int
	stdout, stderr string
	seen           []finding.Host
	want           string
}

// TestMisreadBy: who is hurt by the form of an answer.
func TestMisreadBy(t *testing.T) {
	t.Parallel()
	for _, c := range []misread{
		{"success", OpMount, 0, ok, "", nil, "[]"},
		{"failure with noise", OpMount, 1, fails, "trace", nil, "[]"},
		{"failure without an answer", OpMount, 1, "", "trace", nil, "[]"},
		{"killed", OpMount, -1, ok, "trace", nil, "[]"},
		{"noise", OpAttach, 0, ok, "trace", nil, "[kubernetes]"},
		{"noise, and the host mounts", OpMount, 1, leave, "trace", nil, "[kubernetes]"},
		{"noise with a mount that is seen", OpMount, 0, ok, "trace", []finding.Host{Kubernetes}, "[]"},
		{"noise, and nothing to be seen", OpMount, 1, leave, "trace", []finding.Host{Kubernetes}, "[kubernetes]"},
		{"another spelling", OpAttach, 0, `{"status":"success"}`, "", nil, "[kubernetes]"},
		{"another spelling of not supported", OpAttach, 1, `{"status":"Not Supported"}`, "", nil, "[kubernetes]"},
		{"success with code 1", OpMount, 1, ok, "", nil, "[kubernetes volplane]"},
		{"success with code 1 that is seen", OpUnmount, 1, ok, "", Hosts(), "[]"},
		{"silence", OpMount, 0, "", "", nil, "[kubernetes volplane]"},
		{"silence of what is optional", OpGetVolumeName, 1, "", "", nil, "[kubernetes]"},
		{"wrong kind", OpAttach, 0, `{"status":"Success","device":1}`, "", nil, "[kubernetes volplane]"},
		{"isattached", OpIsAttached, 0, `{"status":"Success","attached":"True"}`, "", nil, "[volplane]"},
		{"noise of isattached", OpIsAttached, 0, ok, "trace", nil, "[]"},
		{"noise of what Kubernetes never calls", OpExpandVolume, 0, ok, "trace", nil, "[]"},
		{"code 1 of what Kubernetes never calls", OpExpandVolume, 1, ok, "", nil, "[volplane]"},
		{"what nobody calls", "frobnicate", 0, ok, "trace", nil, "[]"},
	} {
		call := Call{Op: c.op, Exit: c.exit, Stdout: []byte(c.stdout), Stderr: []byte(c.stderr), Seen: c.seen}
		if got := fmt.Sprint(call.MisreadBy()); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestSeenBy: what the mount table tells a host of a call.
func TestSeenBy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op            Operation
		before, after int
		want          string
	}{
		{OpMount, 0, 1, "[kubernetes]"},
		{OpMountDevice, 0, 1, "[kubernetes]"},
		{OpMount, 0, 0, "[]"},
		{OpMount, 1, 1, "[]"},
		{OpUnmount, 1, 0, "[kubernetes volplane]"},
		{OpUnmount, 1, 1, "[kubernetes volplane]"},
		{OpUnmount, 0, 0, "[volplane]"},
		{OpUnmountDevice, 0, 0, "[kubernetes volplane]"},
		{OpUnmountDevice, 1, 0, "[kubernetes volplane]"},
		{OpAttach, 0, 1, "[]"},
	} {
		if got := fmt.Sprint(SeenBy(c.op, c.before, c.after)); got != c.want {
			t.Errorf("%s, %d and %d: %s, want %s", c.op, c.before, c.after, got, c.want)
		}
	}
}

// formCase is a list of calls of attach and what is found about them.
type formCase struct {
	name  string
	calls []Call
	want  string
}

func attached(exit int, stdout, stderr string) Call {
	return Call{Op: OpAttach, Exit: exit, Stdout: []byte(stdout), Stderr: []byte(stderr)}
}

// TestJudgeForm finds the first call that hurts a host, or else the first of a wrong form.
func TestJudgeForm(t *testing.T) {
	t.Parallel()
	good := attached(0, ok, "")
	for _, c := range []formCase{
		{"none", nil, ""},
		{"good", []Call{good, attached(1, fails, ""), attached(1, leave, "")}, ""},
		{"noise", []Call{good, attached(0, ok, "trace"), good}, `fail standard-error [kubernetes]: attach prints on standard error, which Kubernetes treats as a part of the answer: "trace"`},
		{"noise of a failure", []Call{attached(1, fails, "trace")}, `warn standard-error []: attach prints on standard error, which Kubernetes treats as a part of the answer: "trace"`},
		{
			"the worst of three",
			[]Call{attached(1, fails, "one"), attached(0, ok, "two"), attached(0, ok, "three")},
			`fail standard-error [kubernetes]: attach prints on standard error, which Kubernetes treats as a part of the answer: "two" (and so in 2 more calls)`,
		},
		{"an answer on standard error", []Call{attached(1, "", fails)}, `warn standard-error []: attach prints on standard error, which Kubernetes treats as a part of the answer: "{\"status\":\"Failure\",\"message\":\"no\"}"`},
		{"two answers", []Call{attached(0, ok+ok, "")}, `fail one-answer [kubernetes]: attach prints 2 JSON objects`},
		{"more", []Call{attached(0, "so: "+ok, "")}, `fail one-answer [kubernetes]: attach prints more than JSON: "so: {\"status\":\"Success\"}"`},
		{"nothing", []Call{attached(0, " ", "")}, `fail one-answer [kubernetes volplane]: attach prints nothing`},
		{"no JSON", []Call{attached(1, "usage", "")}, `warn one-answer []: attach does not print JSON: "usage"`},
		{"no status", []Call{attached(0, `{"message":"m"}`, "")}, `fail status [kubernetes volplane]: attach answers without "status"`},
		{"spelling", []Call{attached(0, `{"STATUS":"success"}`, "")}, `fail status [kubernetes]: attach answers the status "success": Kubernetes knows "Success", "Failure" and "Not supported" only`},
		{"another word", []Call{attached(1, `{"status":"Failed"}`, "")}, `warn status []: attach answers the status "Failed": Kubernetes knows "Success", "Failure" and "Not supported" only`},
		{"success and code 3", []Call{attached(3, ok, "")}, `fail exit-code [kubernetes volplane]: attach answers Success and ends with 3, which hosts treat as an error`},
		{"code 2", []Call{attached(2, fails, "")}, `warn exit-code-1 []: attach ends with 2, and should end with 1 after everything but Success`},
		{"failure and code 0", []Call{attached(0, fails, "")}, "warn exit-code []: attach answers Failure and ends with 0\n" +
			`warn exit-code-1 []: attach ends with 0, and should end with 1 after everything but Success`},
		{"killed", []Call{attached(-1, "", "")}, ""},
		{"a long text", []Call{attached(0, ok, strings.Repeat("x", 1000))}, `fail standard-error [kubernetes]: attach prints on standard error, which Kubernetes treats as a part of the answer: "` + strings.Repeat("x", 200) + `" and more`},
		{"hostile", []Call{attached(1, strings.Repeat("{", 100_000), "")}, `warn one-answer []: attach does not print JSON: "` + strings.Repeat("{", 200) + `" and more`},
	} {
		var got []string
		for _, f := range JudgeForm(c.calls) {
			if f.Level != finding.Pass {
				got = append(got, fmt.Sprintf("%s %s %v: %s", f.Level, f.Check, f.Breaks, f.Message))
			}
			if (f.Level == finding.Pass) != (f.Next == "") || f.Message == "" {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
		if text := strings.Join(got, "\n"); text != c.want {
			t.Errorf("%s: found\n%s\nwant\n%s", c.name, text, c.want)
		}
	}
}

// TestJudgeUnknown: what no host calls is a matter of form, whatever the answer.
func TestJudgeUnknown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		exit           int
		stdout, stderr string
		want           string
	}{
		{1, leave, "", "pass an operation that does not exist is Not supported"},
		{0, leave, "", "warn an operation that does not exist is Not supported, and ends with 0 instead of 1"},
		{0, ok, "", "warn an operation that does not exist succeeds"},
		{1, fails, "", `warn an operation that does not exist should be "Not supported", and fails`},
		{1, " ", "", "warn an operation that does not exist gets no answer"},
		{1, "", "usage", `warn an operation that does not exist should be "Not supported": the driver printed no answer (exit code 1)`},
	} {
		f := JudgeUnknown(Call{Op: "frobnicate", Exit: c.exit, Stdout: []byte(c.stdout), Stderr: []byte(c.stderr)})
		if got := string(f.Level) + " " + f.Message; got != c.want || f.Check != "unknown-operation" || f.Breaks != nil ||
			(f.Next == "") != (f.Level == finding.Pass) {
			t.Errorf("%q: %+v, want %s", c.stdout, f, c.want)
		}
	}
}

// TestJudgeCapabilities of an init that has succeeded.
func TestJudgeCapabilities(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		`,"capabilities":{"attach":false}`:                "pass an object; attach is false",
		`,"CAPABILITIES":{"Attach":true,"fsgroup":false}`: "pass an object; attach is true",
		``:                                 "warn init reports no capabilities: a host uses its defaults, among them that the driver attaches",
		`,"capabilities": null`:            `fail "capabilities" is null, which ends Kubernetes' kubelet`,
		`,"capabilities":{}`:               `warn "attach" is missing, and true by default`,
		`,"capabilities":{"fsGroup":true}`: `warn "attach" is missing, and true by default`,
		`,"capabilities":{"attach":false,"metrics":true,"b\u0007":1}`: `warn hosts do not know the capability "b\a", "metrics"`,
	} {
		breaks := map[finding.Level]string{finding.Pass: "[]", finding.Warn: "[]", finding.Fail: "[kubernetes]"}
		f := JudgeCapabilities(Call{Op: OpInit, Stdout: []byte(`{"status":"Success"` + said + "}")})
		if got := string(f.Level) + " " + f.Message; got != want || f.Check != "init-capabilities" ||
			fmt.Sprint(f.Breaks) != breaks[f.Level] ||
			(f.Next == "") != (f.Level == finding.Pass) {
			t.Errorf("%s: %+v, want %s", said, f, want)
		}
	}
}

// TestQuote: what is shown of an output is bounded and printable, and holds no secret.
func TestQuote(t *testing.T) {
	t.Parallel()
	hide := func(s string) string { return strings.ReplaceAll(s, "s3cret", "***") }
	for _, c := range []struct{ stdout, stderr, want string }{
		{"", " \n", "it printed nothing"},
		{"Usage:\n\x1b[31m", "", `it printed "Usage:\n\x1b[31m"`},
		{"a s3cret", "b", `it printed "a *** b"`},
		{strings.Repeat("x", 199) + "s3cret", "", `it printed "` + strings.Repeat("x", 199) + `*" and more`},
	} {
		if got := (Call{Stdout: []byte(c.stdout), Stderr: []byte(c.stderr)}).Quote(hide); got != c.want {
			t.Errorf("%q: %s, want %s", c.stdout, got, c.want)
		}
	}
}
