package chain

import (
	"fmt"
	"io"
	"strings"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// The length of a line, which only longer words exceed: that of an output of unknown width, and its bounds.
const width, narrow, broad = 80, 40, 160

// Columns returns the length of the lines of an output, which says by a method of the same name how wide it is.
func Columns(w io.Writer) int {
	if page, ok := w.(interface{ Columns() int }); ok && page.Columns() > 0 {
		return min(max(page.Columns(), narrow), broad)
	}
	return width
}

// Render writes the chain for people: the answer, an empty line, and the links
// as a tree; when, if not nil, returns what is known about the time of a link.
func Render(w io.Writer, c Chain, when func(Link) string) error {
	var b strings.Builder
	columns := Columns(w)
	WriteHeadline(&b, c, columns)
	b.WriteString("\n")
	for i, l := range c.Links {
		first, rest := "├─ ", "│    "
		switch {
		case i == 0:
			first, rest = "", "│  "
		case i == len(c.Links)-1:
			first, rest = "└─ ", "     "
		}
		if len(c.Links) == 1 {
			rest = "   "
		}
		fmt.Fprintf(&b, "%s%s  %s  %s\n", first, l.Subject, l.State, l.Because.Reason)
		lines := wrap(l.Because.Message, columns-6)
		if when != nil {
			lines = append(lines, wrap(when(l), columns-6)...)
		}
		for _, line := range lines {
			b.WriteString(rest + line + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHeadline writes only the answer, in lines of so many columns.
func WriteHeadline(b *strings.Builder, c Chain, columns int) {
	for i, line := range wrap(Headline(c), columns-2) {
		if i > 0 {
			b.WriteString("  ")
		}
		b.WriteString(line + "\n")
	}
}

// Headline returns the answer in one or two sentences.
func Headline(c Chain) string {
	l := c.Answer()
	verb := map[State]string{OK: "is healthy", Waiting: "waits", Problem: "has a problem"}[l.State]
	subject := ""
	if l.Subject != c.Subject && strings.Contains(l.Subject, "/") {
		subject = l.Subject + ": "
	}
	s := fmt.Sprintf("%s %s: %s%s (%s).", c.Subject, verb, subject, strings.TrimRight(l.Because.Message, "."),
		l.Because.Reason)
	if next := l.Because.Next; !next.IsZero() {
		s += " Next: " + next.String() + "."
	}
	return s
}

// wrap breaks s between words into lines of at most n characters.
func wrap(s string, n int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > n:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Paragraph writes an indented text below the line before it, in lines of so many columns.
func Paragraph(b *strings.Builder, text string, columns int) {
	for _, line := range wrap(text, columns-3) {
		b.WriteString("   " + line + "\n")
	}
}

// Moment returns a time as text.
func Moment(t time.Time) string { return t.UTC().Format(time.DateTime + " UTC") }

// OnNode adds the name of a node to a message that does not have it.
func OnNode(node string, b volume.Because) volume.Because {
	if !strings.Contains(b.Message, node) {
		b.Message = "on node " + node + ": " + b.Message
	}
	return b
}

// named is the maximum number of names in a message.
const named = 5

// Names lists names that may be as many as there are objects.
func Names(all []string) string {
	if more := len(all) - named; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:named], ", "), more)
	}
	return strings.Join(all, ", ")
}

// several is the maximum number of items in a message.
const several = 3

// Few shortens a list that may be as long as the number of nodes.
func Few(all []string) []string {
	if more := len(all) - several; more > 0 {
		return append(all[:several:several], fmt.Sprintf("and %d more", more))
	}
	return all
}
