package attach

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/golden"
	"volplane.dev/volplane/internal/volume"
)

func now() metav1.Time { return metav1.Time{Time: time.Unix(1e9, 0).UTC()} }

// TestAfter plays the table in testdata/answers.txt: cases are separated by empty lines; each is a sentence, an
// attachment, the call about it and what came of that, "----", and what follows. An answer of any code is one for each
// code that gRPC has, and one that it does not have.
func TestAfter(t *testing.T) {
	data, err := os.ReadFile("testdata/answers.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
		given, _, _ := strings.Cut(c, "----")
		given = strings.TrimSpace(given)
		out = append(out, given+"\n----\n"+follows(t, given))
	}
	golden.Equal(t, "testdata/answers.txt", strings.Join(out, "\n\n")+"\n")
}

// follows returns what follows, for each code if the answer is of any code.
func follows(t *testing.T, given string) string {
	if !strings.Contains(given, "any code") {
		return resultText(t, play(t, given))
	}
	var lines []string
	for code := codes.Canceled; code <= codes.Unauthenticated+1; code++ {
		r := play(t, strings.Replace(given, "any code", code.String(), 1))
		lines = append(lines, strings.ReplaceAll(resultText(t, r), "\n", "\n  "))
	}
	return strings.Join(lines, "\n")
}

func play(t *testing.T, given string) Result {
	a, answer, step := attachment("pv", "n1"), Answer{}, Attach
	for _, line := range strings.Split(given, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "#":
		case "attachment":
			read(t, a, strings.Fields(rest))
		case "attachError":
			a.Status.AttachError = &storagev1.VolumeError{Message: rest}
		case "detachError":
			a.Status.DetachError = &storagev1.VolumeError{Message: rest}
		case "attach":
		case "detach":
			step = Detach
		case "answer":
			answer.Answer = answerOf(rest)
		case "published":
			answer.Published = map[string]string{"device": rest}
		case "no-secret":
			answer.NoSecret = rest
		case "refused":
			return Refused(a, volume.Because{Reason: volume.ReasonFailedAttach, Message: rest, Next: "user"}, now())
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return After(step, a, answer, now())
}

func read(t *testing.T, a *storagev1.VolumeAttachment, words []string) {
	for _, w := range words {
		switch w {
		case "attached":
			a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "/dev/x"}
		case "going":
			going(a)
		default:
			t.Fatalf("unknown fact %q", w)
		}
	}
}

// answerOf reads "OK", "CODE: text" of a driver, or "- text" of this program.
func answerOf(text string) volume.Answer {
	if text == "OK" {
		return volume.Answer{Outcome: volume.Done, Code: text}
	}
	if own, ok := strings.CutPrefix(text, "- "); ok {
		return volume.Answer{Text: "Unknown: " + own}
	}
	name, _, _ := strings.Cut(text, ": ")
	for code := codes.Canceled; code <= codes.Unauthenticated+1; code++ {
		if code.String() == name {
			return volume.Answer{Outcome: volume.Failed, Code: name, Number: int32(code), Text: text} //nolint:gosec // small
		}
	}
	return volume.Answer{}
}

func resultText(t *testing.T, r Result) string {
	var lines []string
	if r.Status != nil {
		text, err := json.Marshal(r.Status)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, "status "+strings.ReplaceAll(string(text), `"2001-09-09T01:46:40Z"`, "now"))
	}
	if r.Release {
		lines = append(lines, "release")
	}
	if r.Retry {
		lines = append(lines, "retry")
	}
	tells := "says "
	if r.Warn {
		tells = "warns "
	}
	lines = append(lines, strings.TrimSuffix(tells+whyText(r.Because), " -> "))
	return strings.Join(lines, "\n")
}

// TestToDetach: what is detached is an attachment as it was when it went, with the finalizer that promises a detach.
func TestToDetach(t *testing.T) {
	for name, gone := range map[string]*storagev1.VolumeAttachment{
		"with its finalizer":            attachment("pv", "n1", attached, held, recorded),
		"whose finalizer was taken off": attachment("pv", "n1", attached, recorded),
	} {
		t.Run(name, func(t *testing.T) {
			before, at := gone.DeepCopy(), now()
			want := attachment("pv", "n1", attached, held, recorded)
			want.DeletionTimestamp = &at
			if diff := cmp.Diff(want, ToDetach(gone, at)); diff != "" {
				t.Errorf("to be detached (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, gone); diff != "" {
				t.Errorf("the argument is changed:\n%s", diff)
			}
		})
	}
}
