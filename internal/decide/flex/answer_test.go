package flex

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit/golden"
)

// printedCase is what a driver may print and how it may end.
type printedCase struct {
	name           string
	op             Operation
	exit           int
	stdout, stderr string
}

const ok = `{"status":"Success"}`

func answerCases() []printedCase {
	deep := strings.Repeat(`{"a":`, 40) + ok + strings.Repeat("}", 40)
	return []printedCase{
		{"success", OpMount, 0, ok, ""},
		{"success, exit 1", OpMount, 1, ok, ""},
		{"success, exit 2", OpMount, 2, ok, ""},
		{"success, exit 137", OpMount, 137, ok, ""},
		{"success, signal", OpMount, -1, ok, ""},
		{"failure, exit 0", OpMount, 0, `{"status":"Failure","message":"no server"}`, ""},
		{"failure, exit 1", OpMount, 1, `{"status":"Failure","message":"no server"}`, ""},
		{"failure, exit 2", OpMount, 2, `{"status":"Failure","message":"no server"}`, ""},
		{"failure, exit 137", OpMount, 137, `{"status":"Failure","message":"no server"}`, ""},
		{"failure without message", OpMount, 1, `{"status":"Failure"}`, ""},
		{"other word", OpMount, 1, `{"status":"Failed"}`, ""},
		{"other word with message", OpMount, 1, `{"status":"Failed","message":"m"}`, ""},
		{"not supported, exit 0", OpMount, 0, `{"status":"Not supported"}`, ""},
		{"not supported, exit 1", OpMount, 1, `{"status":"Not supported"}`, ""},
		{"not supported, exit 127", OpMount, 127, `{"status":"Not supported"}`, ""},
		{"capitals", OpMount, 0, `{"Status":"SUCCESS","MESSAGE":"m"}`, ""},
		{"not Supported", OpMount, 1, `{"status":"Not Supported"}`, ""},
		{"nothing, mount", OpMount, 0, "", ""},
		{"nothing, attach", OpAttach, 1, "", ""},
		{"nothing, optional", OpExpandFS, 1, "", ""},
		{"nothing, optional, exit 0", OpGetVolumeName, 0, "", ""},
		{"nothing, optional, cannot be started", OpGetVolumeName, 126, "", ""},
		{"nothing, optional, signal", OpGetVolumeName, -1, "", ""},
		{"usage, optional", OpExpandVolume, 1, "", "usage: lofs init|mount|unmount"},
		{"text before", OpMount, 0, "mounting\n" + ok, ""},
		{"text after", OpMount, 0, ok + "\ndone\n", ""},
		{"text on stderr", OpMount, 0, ok, "warning: {odd}"},
		{"answer on stderr, text on stdout", OpMount, 0, "mounting {it}", ok},
		{"an answer on each", OpMount, 1, `{"status":"Failure","message":"stdout"}`, ok},
		{"two answers", OpMount, 0, `{"status":"Failure"}` + ok, ""},
		{"two answers, the last fails", OpMount, 1, ok + "\n" + `{"status":"Failure","message":"late"}`, ""},
		{"an object that is no answer after it", OpMount, 0, ok + `{"debug":1}`, ""},
		{"an answer within something", OpMount, 0, `{"result":` + ok + `}`, ""},
		{"quote before", OpMount, 0, `can't find "{ ` + ok, ""},
		{"brace before", OpMount, 0, `{ ${x} {{ ` + ok, ""},
		{"in a list", OpMount, 0, "[" + ok + "]", ""},
		{"byte order mark", OpMount, 0, "\ufeff" + ok, ""},
		{"one quote is single", OpMount, 0, `{'status':'Success'}`, ""},
		{"cut off", OpMount, 0, `{"status":"Success"`, ""},
		{"deep", OpMount, 0, deep, ""},
		{"an answer with something deep in it", OpMount, 0, `{"status":"Success","x":` + strings.Repeat("[",
			40) + strings.Repeat("]", 40) + `}`, ""},
		{"quotes and braces in a message", OpMount, 1, `{"status":"Failure","message":"a \" } b"} {`, ""},
		{"deep within the bound", OpMount, 0, `{"status":"Success","x":` + strings.Repeat("[", 30) + strings.Repeat("]",
			30) + `}`, ""},
		{"binary", OpMount, 0, "\x7fELF\x00\xff\xfe{\x00}", ""},
		{"a number", OpMount, 0, "42", ""},
		{"null", OpMount, 0, "null", ""},
		{"status is a number", OpMount, 0, `{"status":0}`, ""},
		{"status is null", OpMount, 0, `{"status":null}`, ""},
		{"message is an object", OpMount, 1, `{"status":"Failure","message":{"a":1}}`, ""},
		{"what is not asked is wrong", OpMount, 0, `{"status":"Success","device":5,"attached":"x","capabilities":[]}`, ""},
		{"the same key twice", OpMount, 0, `{"status":"Failure","status":"Success"}`, ""},
	}
}

// resultCases are about what else operations answer.
func resultCases() []printedCase {
	return []printedCase{
		{"attach", OpAttach, 0, `{"status":"Success","device":"/dev/sdb"}`, ""},
		{"attach without a device", OpAttach, 0, ok, ""},
		{"attach, device is a number", OpAttach, 0, `{"status":"Success","device":7}`, ""},
		{"attach, device has a zero", OpAttach, 0, `{"status":"Success","device":"a\u0000"}`, ""},
		{"attach, device is null", OpAttach, 0, `{"status":"Success","device":null}`, ""},
		{"attached", OpIsAttached, 0, `{"status":"Success","attached":true}`, ""},
		{"not attached", OpIsAttached, 0, `{"status":"Success","attached":false}`, ""},
		{"attached is not told", OpIsAttached, 0, ok, ""},
		{"attached in Python", OpIsAttached, 0, `{"status":"Success","attached":True}`, ""},
		{"attached is text", OpIsAttached, 0, `{"status":"Success","attached":"True"}`, ""},
		{"volume name", OpGetVolumeName, 0, `{"status":"Success","volumeName":"pool/a"}`, ""},
		{"size", OpExpandVolume, 0, `{"status":"Success","volumeNewSize":1073741824}`, ""},
		{"size is a fraction", OpExpandVolume, 0, `{"status":"Success","volumeNewSize":1.5}`, ""},
		{"size is negative", OpExpandVolume, 0, `{"status":"Success","volumeNewSize":-1}`, ""},
		{"size is huge", OpExpandVolume, 0, `{"status":"Success","volumeNewSize":99999999999999999999}`, ""},

		{"capabilities absent", OpInit, 0, ok, ""},
		{"capabilities null", OpInit, 0, `{"status":"Success","capabilities":null}`, ""},
		{"capabilities empty", OpInit, 0, `{"status":"Success","capabilities":{}}`, ""},
		{"one capability", OpInit, 0, `{"status":"Success","capabilities":{"attach":false}}`, ""},
		{
			"capabilities in capitals", OpInit, 0,
			`{"status":"Success","Capabilities":{"ATTACH":false,"supportsmetrics":true}}`, "",
		},
		{"a capability is null", OpInit, 0, `{"status":"Success","capabilities":{"attach":null,"fsGroup":false}}`, ""},
		{"an unknown capability", OpInit, 0, `{"status":"Success","capabilities":{"fly":true}}`, ""},
		{"a capability is text", OpInit, 0, `{"status":"Success","capabilities":{"attach":"false"}}`, ""},
		{"capabilities are a list", OpInit, 0, `{"status":"Success","capabilities":[]}`, ""},
		{"init fails", OpInit, 1, `{"status":"Failure","message":"jq is not installed","capabilities":[]}`, ""},
		{"init not supported", OpInit, 1, `{"status":"Not supported"}`, ""},
	}
}

// TestAnswers: what each kind of output means (F-009 to F-011, F-024, F-027).
func TestAnswers(t *testing.T) {
	var b strings.Builder
	for _, c := range append(answerCases(), resultCases()...) {
		a, err := ParseAnswer(c.op, c.exit, []byte(c.stdout), []byte(c.stderr))
		fmt.Fprintf(&b, "%s: %s\n", c.name, shownAnswer(c.op, a, err))
	}
	golden.Equal(t, "testdata/answers.txt", b.String())
}

func shownAnswer(op Operation, a Answer, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	s := string(a.Status)
	if a.Message != "" {
		s += fmt.Sprintf(", message %q", a.Message)
	}
	if a.Device != "" {
		s += ", device " + a.Device
	}
	if a.VolumeName != "" {
		s += ", name " + a.VolumeName
	}
	if a.Attached != nil {
		s += fmt.Sprint(", attached ", *a.Attached)
	}
	if a.NewSize != 0 {
		s += fmt.Sprint(", size ", a.NewSize)
	}
	if op == OpInit && a.Status == Success {
		s += fmt.Sprintf(", %+v", a.Capabilities)
	}
	return s
}

// TestAnswerIsBounded: a megabyte made to be slow is refused in the time of a
// few passes over it.
func TestAnswerIsBounded(t *testing.T) {
	fill := func(unit string) []byte { return bytes.Repeat([]byte(unit), 2*MaxOutput/len(unit)) }
	for _, unit := range []string{
		"{", `{"`, `{"a":`, `{"a":{"b":1,`, "{x", `"{":"{":"`, "[", `{"a":[`, `\"{`, "{}", `{"a":1}`, " ", "\x00",
	} {
		if a, err := ParseAnswer(OpMount, 0, fill(unit), fill(unit)); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%q: %+v, %v", unit, a, err)
		}
		if _, _, steps := search(fill(unit)); steps > (maxScans+1)*2*MaxOutput {
			t.Errorf("%q: %d steps", unit, steps)
		}
	}
	// The end counts: noise before the answer is not in its way.
	out := append(fill("noise\n"), ok...)
	if a, err := ParseAnswer(OpMount, 0, out, nil); err != nil || a.Status != Success {
		t.Errorf("after noise: %+v, %v", a, err)
	}
	if a, err := ParseAnswer(OpMount, 0, append([]byte(ok), fill("noise\n")...), nil); err == nil {
		t.Errorf("before more noise than is kept: %+v", a)
	}
}

// TestDeviceIsBounded: what a driver calls a device has to be an argument later.
func TestDeviceIsBounded(t *testing.T) {
	for _, n := range []int{maxDevice, maxDevice + 1} {
		_, err := ParseAnswer(OpAttach, 0, []byte(`{"status":"Success","device":"`+strings.Repeat("d", n)+`"}`), nil)
		if errors.Is(err, ErrMalformed) != (n > maxDevice) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestVolumeNameOf(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "pool/a": "pool~a", "/": "~", "...": "...", "a b": "a b",
		strings.Repeat("x", 255): strings.Repeat("x", 255),
		"":                       "", ".": "", "..": "", "a\x00": "", strings.Repeat("x", 256): "",
	} {
		got, err := VolumeNameOf(Answer{VolumeName: name})
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrVolumeName) {
			t.Errorf("VolumeNameOf(%q) = %q, %v", name, got, err)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	for _, c := range append(answerCases(), resultCases()...) {
		f.Add(c.exit, []byte(c.stdout), []byte(c.stderr))
	}
	f.Fuzz(func(t *testing.T, exit int, stdout, stderr []byte) {
		for _, op := range Operations() {
			a, err := ParseAnswer(op, exit, stdout, stderr)
			if err != nil {
				is := func(known error) bool { return errors.Is(err, known) }
				if !slices.ContainsFunc([]error{ErrNoAnswer, ErrMalformed, ErrContradiction, ErrKilled, ErrNUL}, is) ||
					len(err.Error()) > 200 {
					t.Fatalf("%v", err)
				}
				continue
			}
			if a.Status == Success && exit != 0 || !slices.Contains([]Status{Success, Failure, NotSupported}, a.Status) ||
				a.NewSize < 0 {
				t.Fatalf("%+v with exit code %d", a, exit)
			}
		}
	})
}
