package reports

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit/golden"
)

// report is a public bug report: its source, what was done, the right behaviour, and the test that plays it.
type report struct{ source, done, right, proof string }

const (
	// scripts has a script for each report that is played here, which begins with the report.
	scripts = "testdata/scripts"
	// elsewhere has the reports that other tests play, one in each paragraph, which ends with the test.
	elsewhere = "testdata/elsewhere.txt"
	// fewest is how many reports there are at least.
	fewest = 36
)

// TestTable writes all reports to one table: UPDATE_GOLDEN=1 writes it. That the tests elsewhere exist is tested where
// the proofs of requirements are.
func TestTable(t *testing.T) {
	t.Parallel()
	all := map[string]report{}
	for _, r := range append(readScripts(t), readElsewhere(t)...) {
		if _, twice := all[r.source]; twice {
			t.Errorf("%s has two rows", r.source)
		}
		all[r.source] = r
	}
	if len(all) < fewest {
		t.Errorf("there are %d reports", len(all))
	}
	var b strings.Builder
	b.WriteString("# Public bug reports that are played\n\n" +
		"| Report | What was done | What is right | Test |\n|---|---|---|---|\n")
	for _, source := range slices.Sorted(maps.Keys(all)) {
		r := all[source]
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` |\n", source, r.done, r.right, r.proof)
	}
	golden.Equal(t, "testdata/reports.md", b.String())
}

func readScripts(t *testing.T) []report {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(scripts, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var all []report
	for _, file := range files {
		r := read(t, file, head(t, file))
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if short := regexp.MustCompile("[^/]*$").FindString(strings.ReplaceAll(r.source, "#", "-")); short != name {
			t.Errorf("%s is the script of %s", file, r.source)
		}
		r.proof = "test/e2e/reports.TestScripts/" + name
		all = append(all, r)
	}
	return all
}

// head returns the comment at the beginning of a script.
func head(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		comment, is := strings.CutPrefix(line, "# ")
		if !is {
			break
		}
		b.WriteString(comment)
	}
	return b.String()
}

func readElsewhere(t *testing.T) []report {
	t.Helper()
	text, err := os.ReadFile(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	var all []report
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		before, proof, ok := strings.Cut(paragraph, "\nProof: ")
		if !ok {
			t.Errorf("no proof: %s", paragraph)
		}
		r := read(t, elsewhere, before)
		r.proof = strings.TrimSpace(proof)
		all = append(all, r)
	}
	return all
}

// read reads the three parts of a report, each of which may have several lines.
func read(t *testing.T, file, text string) report {
	t.Helper()
	form := regexp.MustCompile(`(?s)^([\w.-]+/[\w.-]+#\d+)\nDone: (.+)\nRight: (.+)$`)
	m := form.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		t.Fatalf("%s: want OWNER/NAME#NUMBER, Done: and Right:\n%s", file, text)
	}
	line := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	return report{source: m[1], done: line(m[2]), right: line(m[3])}
}
