package userstest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"volplane.dev/volplane/internal/testkit/golden"
)

// Stories plays the stories of testdata/stories.txt, each in a bubble of synctest and in a new world, whose play
// returns what is to be seen after a step.
func Stories(t *testing.T, world func(t *testing.T) (play func(step string) string, stop func())) {
	t.Helper()
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
				play, stop := world(t)
				defer stop()
				for _, line := range lines[1:] {
					if step, is := strings.CutPrefix(line, "> "); is {
						fmt.Fprintf(&out, "> %s\n  %s\n", step, play(step))
					}
				}
			})
		})
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/stories.txt", strings.TrimSpace(out.String())+"\n")
}
