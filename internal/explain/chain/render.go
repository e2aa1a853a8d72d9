package chain

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// width is the maximum length of a line; only longer words exceed it.
const width = 80

// Render writes the chain for people: the answer, an empty line, and the links
// as a tree; when, if not nil, returns what is known of the time of a link.
func Render(w io.Writer, c Chain, when func(Link) string) error {
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
		lines := wrap(l.Because.Message, width-6)
		if when != nil {
			lines = append(lines, wrap(when(l), width-6)...)
		}
		for _, line := range lines {
			b.WriteString(rest + line + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHeadline writes only the answer.
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

// Paragraph writes an indented text below the line before it.
func Paragraph(b *strings.Builder, text string) {
	for _, line := range wrap(text, width-3) {
		b.WriteString("   " + line + "\n")
	}
}

// Moment returns a time as text.
func Moment(t time.Time) string { return t.UTC().Format(time.DateTime + " UTC") }

// OnNode adds the name of a node to a message that does not have it.
func OnNode(node, message string) string {
	if strings.Contains(message, node) {
		return message
	}
	return "on node " + node + ": " + message
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
