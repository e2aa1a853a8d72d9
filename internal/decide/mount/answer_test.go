package mount

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// judge plays a table in testdata/answers: cases are separated by empty lines; each is a sentence, facts, "----", and
// the verdict.
func judge(t *testing.T, table string, verdict func(given string) string) {
	t.Helper()
	file := "testdata/answers/" + table
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
		given, _, _ := strings.Cut(c, "----")
		given = strings.TrimSpace(given)
		_, facts, _ := strings.Cut(given, "\n")
		out = append(out, given+"\n----\n"+verdict(facts))
	}
	golden.Equal(t, file, strings.Join(out, "\n\n")+"\n")
}

func seen(words []string) Observed {
	has := func(w string) bool { return slices.Contains(words, w) }
	return Observed{Mounted: has("mounted"), Device: has("device"), Unreadable: has("unreadable"), Dead: has("dead")}
}

// TestBrought: what the journal says after each answer to a stage or a publish.
func TestBrought(t *testing.T) {
	judge(t, "brought.txt", func(given string) string {
		words := strings.Fields(given)
		before := Phase("")
		for _, w := range words {
			if phase, ok := strings.CutPrefix(w, "before="); ok {
				before = Phase(phase)
			}
		}
		return csitest.EveryAnswer(func(answer volume.Answer) string {
			return cmp.Or(string(PhaseAfterCall(Verb(words[0]), before, answer, seen(words))), "none")
		})
	})
}

// TestRemoved: what is left after each answer to the call that takes a volume away.
func TestRemoved(t *testing.T) {
	judge(t, "removed.txt", func(given string) string {
		return csitest.EveryAnswer(func(answer volume.Answer) string {
			return map[Removal]string{
				Remains: "remains", Gone: "gone", DetachDead: "remains, and the dead mount is detached",
				UnmountRest: "the rest is unmounted", Unverified: "nobody can tell",
			}[Removed(answer, seen(strings.Fields(given)))]
		})
	})
}

func TestStale(t *testing.T) {
	judge(t, "stale.txt", func(given string) string {
		f, attachment := Facts{}, ""
		for _, line := range strings.Split(given, "\n") {
			words := strings.Fields(line)
			switch words[0] {
			case "record":
				by := strings.TrimPrefix(words[len(words)-1], "by=")
				if f.Record = record(words[1:]); by != words[len(words)-1] {
					f.Record = record(words[1 : len(words)-1])
					f.Record.Attachment = by
				}
			case "target":
				f.Record.Targets = append(f.Record.Targets, target(words[1:]))
			case "want":
				f.Wanted = append(f.Wanted, wanted(words[1:], Consumer{}))
			case "attachment":
				attachment = words[1]
			default:
				t.Fatalf("unknown fact %q", line)
			}
		}
		stale, unstage := Stale(f.Record, attachment, f.Wanted)
		return fmt.Sprintf("stale %v, unstage %v", stale, unstage)
	})
}

// TestStepFailed: who is next after each answer.
func TestStepFailed(t *testing.T) {
	judge(t, "next.txt", func(given string) string {
		words := strings.Fields(given)
		return csitest.EveryAnswer(func(answer volume.Answer) string {
			b := StepFailed(Verb(words[0]), "d", "n", Failure{
				Answer: answer, Obstacle: slices.Contains(words, "in-the-way"),
				NotDone: slices.Contains(words, "not-shown"), OtherID: slices.Contains(words, "other-id"),
			})
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
