package chain

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// width is the number of columns that a rendering keeps to; only words longer
// than a line go beyond it.
const width = 80

// Render writes the chain for people: the answer, an empty line, and the links
// as a tree.
func Render(w io.Writer, c Chain) error {
	var b strings.Builder
	WriteHeadline(&b, c)
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
		for _, line := range wrap(l.Because.Message, width-6) {
			b.WriteString(rest + line + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHeadline writes the answer alone.
func WriteHeadline(b *strings.Builder, c Chain) {
	for i, line := range wrap(Headline(c), width-2) {
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
	if l.Subject != c.Subject {
		subject = l.Subject + ": "
	}
	s := fmt.Sprintf("%s %s: %s%s (%s).", c.Subject, verb, subject, strings.TrimRight(l.Because.Message, "."),
		l.Because.Reason)
	if l.Because.Next != "" {
		s += " Next: " + l.Because.Next + "."
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

// Paragraph writes a text that belongs to the line before it.
func Paragraph(b *strings.Builder, text string) {
	for _, line := range wrap(text, width-3) {
		b.WriteString("   " + line + "\n")
	}
}

// Moment writes a time for people.
func Moment(t time.Time) string { return t.UTC().Format(time.DateTime + " UTC") }

// OnNode adds the node to a message that does not name it.
func OnNode(node, message string) string {
	if strings.Contains(message, node) {
		return message
	}
	return "on node " + node + ": " + message
}

// several is how many of what is told of one cause are told.
const several = 3

// Few shortens a list that is as long as a cluster has nodes.
func Few(all []string) []string {
	if more := len(all) - several; more > 0 {
		return append(all[:several:several], fmt.Sprintf("and %d more", more))
	}
	return all
}
