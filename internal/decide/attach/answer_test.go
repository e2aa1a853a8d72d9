package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func now() metav1.Time { return metav1.Time{Time: time.Unix(1e9, 0).UTC()} }

// TestAfter plays the table in testdata/answers.txt: an attachment, the call about it and what came of that, and what
// follows.
func TestAfter(t *testing.T) { golden.Play(t, "testdata/answers.txt", follows) }

// follows returns what follows; of any answer each verdict, with the answers that it is about.
func follows(t *testing.T, given string) string {
	if !strings.Contains(given, "answer any") {
		return resultText(t, play(t, given, volume.Answer{}))
	}
	return csitest.EveryAnswer(func(answer volume.Answer) string {
		text := resultText(t, play(t, given, answer))
		text = strings.ReplaceAll(text, fmt.Sprintf(`"errorCode":%d,`, answer.Number), `"errorCode":ITS CODE,`)
		if answer.Text != "" {
			text = strings.ReplaceAll(text, answer.Text, "ITS TEXT")
		}
		return strings.ReplaceAll(text, "\n", "\n  ")
	})
}

func play(t *testing.T, given string, anyAnswer volume.Answer) Result {
	a, answer, steps := attachment("pv", "n1"), Answer{}, map[string]Step{"attach": Attach, "detach": Detach}
	var step Step
	for _, line := range strings.Split(given, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "attachment":
			read(t, a, strings.Fields(rest))
		case "attachError":
			a.Status.AttachError = &storagev1.VolumeError{Message: rest}
		case "detachError":
			a.Status.DetachError = &storagev1.VolumeError{Message: rest}
		case "attach", "detach":
			step = steps[word]
		case "answer":
			if answer.Answer = anyAnswer; rest != "any" {
				answer.Answer = answerOf(t, rest)
			}
		case "published":
			answer.Published = map[string]string{"device": rest}
		case "vanished":
			answer.Vanished = rest
		case "no-secret":
			answer.Missing = rest
		case "refused":
			return Refused(a, volume.Because{Reason: volume.ReasonFailedAttach, Message: rest, Next: volume.User()}, now())
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
func answerOf(t *testing.T, text string) volume.Answer {
	code, message, _ := strings.Cut(text, ": ")
	all := map[string]codes.Code{
		"Internal": codes.Internal, "Aborted": codes.Aborted, "Unauthenticated": codes.Unauthenticated,
	}
	switch own, ok := strings.CutPrefix(text, "- "); {
	case strings.HasSuffix(own, `secrets "s" not found`):
		a := csi.AnswerOf(errors.New(own))
		a.NoSecret = true
		return a
	case ok:
		return csi.AnswerOf(errors.New(own))
	case text != "OK" && all[code] == codes.OK:
		t.Fatalf("unknown answer %q", text)
	}
	return csi.AnswerOf(status.Error(all[code], message))
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

// TestMount: by which attachments a node mounts, and which it waits for.
func TestMount(t *testing.T) {
	to := func(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
		return attachment("pv", "n1", attached, change)
	}
	name, same := NameOf(driver, "h-pv", "n1"), func(*storagev1.VolumeAttachment) {}
	for argues, c := range map[string]struct {
		listed     bool
		attachment *storagev1.VolumeAttachment
		want       string
		wait       bool
	}{
		"it is attached":                     {true, to(same), "", false},
		"the node does not list it any more": {false, to(same), "volume pv is being detached from node n1", true},
		"the API does not show it": {
			true, nil, "attachment " + name + " of volume pv is not visible yet", true,
		},
		"it is going": {true, to(going), "attachment " + name + " of volume pv does not exist or is being deleted", true},
		"it is not attached": {
			true, attachment("pv", "n1"), "attachment " + name + " of volume pv does not exist or is being deleted", true,
		},
		"it is of another node": {
			true, to(func(a *storagev1.VolumeAttachment) { a.Spec.NodeName = "n2" }),
			"attachment " + name + " belongs to driver " + driver + " and node n2, wanted " + driver + " and n1", false,
		},
		"it is of another driver": {
			true, to(func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "e" }),
			"attachment " + name + " belongs to driver e and node n1, wanted " + driver + " and n1", false,
		},
	} {
		t.Run(argues, func(t *testing.T) {
			m := Mount{Driver: driver, Handle: "h-pv", Volume: "pv", Node: "n1", Listed: c.listed, Attachment: c.attachment}
			if got, wait := m.Problem(); got != c.want || wait != c.wait {
				t.Errorf("problem %q, wait %v", got, wait)
			}
		})
	}
}

// TestNodeFull: one code says that a node takes no more volumes.
func TestNodeFull(t *testing.T) {
	if a := attachment("pv", "n1"); NodeFull(a) {
		t.Error("an attachment without an error is of a node that is full")
	}
	got := csitest.EveryAnswer(func(answer volume.Answer) string {
		a := attachment("pv", "n1", failing)
		if answer.Code != "" {
			a.Status.AttachError.ErrorCode = &answer.Number
		}
		return fmt.Sprint(NodeFull(a))
	})
	if want := "true: ResourceExhausted\nfalse: whatever else"; got != want {
		t.Errorf("full: %s, want %s", got, want)
	}
}
