package health

import (
	"strings"
	"testing"
	"unicode"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// TestProblemsObeyNobody: what a driver reports comes into a Pod's condition, which people read in terminals.
func TestProblemsObeyNobody(t *testing.T) {
	t.Parallel()
	got := problems([]*csipb.VolumeHealth_VolumeHealthEntry{
		{Reason: "Slow\x1b]0;title\x07", Message: "\x1b[2Jtwo\nlines\u202e\xff"},
		{Reason: "Big", Message: strings.Repeat("y", 1<<20)},
	})
	if strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("a terminal would obey %q", got)
	}
	if !strings.Contains(got, "Slow ]0;title : [2Jtwo lines ?") || len(got) > 3*maxProblem {
		t.Errorf("%d bytes: %.200q", len(got), got)
	}
}
