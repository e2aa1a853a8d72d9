package mount

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestBrought: what the journal says after each answer to a stage or a publish.
func TestBrought(t *testing.T) {
	golden.Play(t, "testdata/answers/brought.txt", func(t *testing.T, given string) string {
		words := strings.Fields(given)
		var was struct {
			Observed
			Before Phase
		}
		golden.Read(t, &was, words[1:])
		return csitest.EveryAnswer(func(answer volume.Answer) string {
			return cmp.Or(string(PhaseAfterCall(Verb(words[0]), was.Before, answer, was.Observed)), "none")
		})
	})
}

// TestRemoved: what is left after each answer to the call that takes a volume away.
func TestRemoved(t *testing.T) {
	golden.Play(t, "testdata/answers/removed.txt", func(t *testing.T, given string) string {
		var seen Observed
		golden.Read(t, &seen, strings.Fields(strings.Trim(given, "-")))
		return csitest.EveryAnswer(func(answer volume.Answer) string {
			return map[Removal]string{
				Remains: "remains", Gone: "gone", DetachDead: "remains, and the dead mount is detached",
				UnmountRest: "the rest is unmounted", Unverified: "nobody can tell",
			}[Removed(answer, seen)]
		})
	})
}

// TestStale: whether what is mounted is of an earlier attachment than the last line names, and whether it is unstaged.
func TestStale(t *testing.T) {
	golden.Play(t, "testdata/answers/stale.txt", func(t *testing.T, given string) string {
		mounted, attachment, _ := strings.Cut(given, "attachment ")
		f := facts(t, mounted)
		stale, unstage := Stale(f.Record, attachment, f.Wanted)
		return fmt.Sprintf("stale %v, unstage %v", stale, unstage)
	})
}

// TestStepFailed: who is next after each answer.
func TestStepFailed(t *testing.T) {
	golden.Play(t, "testdata/answers/next.txt", func(t *testing.T, given string) string {
		words := strings.Fields(given)
		var f Failure
		golden.Read(t, &f, words[1:])
		return csitest.EveryAnswer(func(answer volume.Answer) string {
			f.Answer = answer
			b := StepFailed(Verb(words[0]), "d", "n", f)
			if b.Message != answer.Text {
				t.Errorf("%s: message is %q", answer.Text, b.Message)
			}
			return string(b.Reason) + " -> " + b.Next.String()
		})
	})
}

// TestUnstageRefused: after which answers the next Pod need not wait for the end of an unstage.
func TestUnstageRefused(t *testing.T) {
	got := csitest.EveryAnswer(func(answer volume.Answer) string { return fmt.Sprint(UnstageRefused(answer)) })
	golden.Equal(t, "testdata/answers/refused.txt", got+"\n")
}

func TestAskNext(t *testing.T) {
	got := csitest.EveryAnswer(func(answer volume.Answer) string { return fmt.Sprint(AskNext(answer)) })
	golden.Equal(t, "testdata/answers/ask.txt", got+"\n")
}
