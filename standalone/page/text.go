package page

import (
	"net/url"
	"strings"
	"unicode"

	"volplane.dev/volplane/internal/gather"
)

// longest is the number of characters of a foreign text that are shown.
const longest = 600

// clean returns a foreign text in a form that may be shown: not too long, in one line, and without characters that are
// invisible or change the direction of text.
func clean(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > longest {
			b.WriteString("…")
			break
		}
		switch {
		case unicode.IsSpace(r):
			r = ' '
		case !unicode.IsPrint(r):
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return b.String()
}

// ref is a text, and the address of the page about it, if there is one.
type ref struct{ Text, Href string }

// object names an object as kubectl does: kind and name, with the namespace of kinds that have one.
type object struct{ kind, ns, name string }

// subjectOf reads a subject of an explanation, "kind/name". Other subjects are not objects of their own, or ambiguous.
func subjectOf(ns, subject string) (object, bool) {
	word, name, _ := strings.Cut(subject, "/")
	k, known := gather.KindNamed(word)
	if !k.Namespaced {
		ns = ""
	}
	if !known || name == "" || k.Namespaced && ns == "" {
		return object{}, false
	}
	return object{k.Name, ns, name}, true
}

// noNamespace is used in paths of objects that have no namespace.
const noNamespace = "-"

// path returns the path of the object's page.
func (o object) path() string {
	ns := o.ns
	if ns == "" {
		ns = noNamespace
	}
	return strings.Join([]string{"object", o.kind, url.PathEscape(ns), url.PathEscape(o.name)}, "/")
}

func (o object) subject() string { return o.kind + "/" + o.name }

// command returns the command that shows the same about the object.
func (o object) command(verb string) string {
	words := "volplane " + verb + " " + quoted(o.subject())
	if o.ns != "" {
		words += " -n " + quoted(o.ns)
	}
	return clean(words)
}

// quoted returns a word as a shell reads it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("-._/:=", r)
	}
	if strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
