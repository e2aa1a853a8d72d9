package golden

import (
	"os"
	"strings"
	"testing"
)

// Play plays a table of words: paragraphs with empty lines between them, each with a title, "# TITLE", what is given,
// which may be nothing, "----", and what follows from that. Each paragraph is a test of its own.
func Play(t *testing.T, file string, follows func(t *testing.T, given string) string) {
	t.Helper()
	paragraphs(t, file, func(t *testing.T, lines []string) string {
		given, _, _ := strings.Cut(strings.Join(lines, "\n"), "----")
		return given + "----\n" + strings.TrimSuffix(follows(t, strings.TrimSuffix(given, "\n")), "\n")
	})
}

// Steps plays the paragraphs of a file as stories: lines that begin with ">" are steps, and below each of them,
// indented by two blanks, is what there is to see after it, which step returns. A story may have a title and is a test
// of its own: story prepares it, and has it played.
func Steps(t *testing.T, file string, story func(t *testing.T, play func(step func(string) string))) {
	t.Helper()
	paragraphs(t, file, func(t *testing.T, lines []string) string {
		var out []string
		story(t, func(step func(string) string) {
			for _, line := range lines {
				words, is := strings.CutPrefix(line, "> ")
				if !is {
					continue
				}
				out = append(out, line)
				if seen := step(words); seen != "" {
					out = append(out, "  "+strings.ReplaceAll(seen, "\n", "\n  "))
				}
			}
		})
		return strings.Join(out, "\n")
	})
}

// paragraphs compares each paragraph of a file with what it becomes. Their titles stay.
func paragraphs(t *testing.T, file string, become func(t *testing.T, lines []string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, out := strings.Split(strings.Trim(string(text), "\n"), "\n\n"), []string{}
	for _, want := range all {
		title, lines := "", strings.Split(want, "\n")
		name, is := strings.CutPrefix(lines[0], "# ")
		if is {
			title, lines = lines[0]+"\n", lines[1:]
		}
		t.Run(name, func(t *testing.T) {
			got := title + become(t, lines)
			if out = append(out, got); !updates() {
				compare(t, file, want, got)
			}
		})
	}
	if updates() && len(out) == len(all) { // -run leaves some out
		Equal(t, file, strings.Join(out, "\n\n")+"\n")
	}
}
