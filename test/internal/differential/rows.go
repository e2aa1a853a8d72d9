package differential

import (
	"slices"
	"strings"
	"unicode"
)

// Has says whether a line has all words.
func Has(lines []string, words ...string) bool {
	return slices.ContainsFunc(lines, func(l string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) })
	})
}

// Difference has the lines of both sides, and those that only one side has.
type Difference struct {
	Ours, Theirs         []string
	OnlyOurs, OnlyTheirs []string
}

// Row is one reason for which lines may differ.
type Row struct {
	Reason   string
	Explains func(d Difference, line string) bool
}

// Explain returns the reasons of rows why two states may differ, "" if there is
// a line without one.
func Explain(ours, theirs []string, rows []Row) string {
	d := Difference{
		Ours: ours, Theirs: theirs, OnlyOurs: Without(compared(ours), theirs), OnlyTheirs: Without(compared(theirs), ours),
	}
	var reasons []string
	for _, line := range slices.Concat(d.OnlyOurs, d.OnlyTheirs) {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Explains(d, line) })
		if i < 0 {
			return ""
		}
		reasons = append(reasons, rows[i].Reason)
	}
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; and ")
}

// About says whether a line is about an object of one of the names.
func About(line string, names []string) bool {
	words := strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(words, n) })
}

// Without returns the lines that are not among the others.
func Without(lines, others []string) []string {
	var out []string
	for _, l := range lines {
		if !slices.Contains(others, l) {
			out = append(out, l)
		}
	}
	return out
}

// LineOf returns the first line with a prefix, or "".
func LineOf(lines []string, begin string) string {
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, begin) }); i >= 0 {
		return lines[i]
	}
	return ""
}

// Field returns the word behind a name in a line.
func Field(line, name string) string {
	_, rest, found := strings.Cut(line, " "+name)
	if !found {
		return ""
	}
	word, _, _ := strings.Cut(rest, " ")
	return word
}
