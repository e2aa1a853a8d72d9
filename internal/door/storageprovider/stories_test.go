package storageprovider

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"volplane.dev/volplane/internal/testkit/golden"
)

// TestStories plays what systemd does, and what goes wrong beside it.
func TestStories(t *testing.T) {
	text, err := os.ReadFile("testdata/stories.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for story := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		lines := strings.Split(story, "\n")
		out.WriteString(lines[0] + "\n")
		t.Run(strings.TrimPrefix(lines[0], "# "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.stop()
				for _, line := range lines[1:] {
					if step, is := strings.CutPrefix(line, "> "); is {
						fmt.Fprintf(&out, "> %s\n  %s\n", step, w.play(step))
					}
				}
			})
		})
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/stories.txt", strings.TrimSpace(out.String())+"\n")
}
