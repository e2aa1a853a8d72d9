package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// words are the placeholders with which manifests are made, and the expressions that replace them.
type words [][2]string

// expression is a scalar that a template makes, as JSON.
type expression string

// text writes templates.
type text struct {
	strings.Builder
	words words
}

// put adds one line.
func (t *text) put(indent int, line string) {
	t.WriteString(strings.Repeat(" ", indent) + line + "\n")
}

// object writes a whole object.
func (t *text) object(n *node) { t.fields(n.fields, 0, "") }

// fields writes the fields of an object. The first field of a list element is on the line of its dash, where no
// condition is possible, so an unconditional field comes first.
func (t *text) fields(all []*node, indent int, dash string) {
	if dash != "" {
		i := slices.IndexFunc(all, func(n *node) bool { return !n.optional() })
		first := all[i]
		t.value(first, indent-len(dash), dash+first.key+":", indent)
		all = slices.Delete(slices.Clone(all), i, i+1)
	}
	for _, n := range all {
		t.conditional(n, func() { t.field(n, indent) })
	}
}

// optional says whether a part may be absent.
func (n *node) optional() bool { return len(n.when)+len(n.unless) > 0 || n.expr != "" }

func (t *text) field(n *node, indent int) {
	switch {
	case n.spread:
		t.spread(n, indent)
	case n.expr != "":
		t.put(0, "{{- with "+n.expr+" }}")
		t.put(indent, n.key+":")
		t.put(indent+2, fmt.Sprintf("{{- toYaml . | nindent %d }}", indent+2))
		t.put(0, "{{- end }}")
	default:
		t.value(n, indent, n.key+":", indent)
	}
}

// spread writes values among others.
func (t *text) spread(n *node, indent int) {
	t.put(0, fmt.Sprintf("{{- with %s }}{{ toYaml . | nindent %d }}{{- end }}", n.expr, indent))
}

// value writes a value after the existing text of its line.
func (t *text) value(n *node, indent int, before string, below int) {
	switch {
	case len(n.fields) > 0:
		t.put(indent, before)
		t.fields(n.fields, below+2, "")
	case len(n.elements) > 0:
		t.put(indent, before)
		t.list(n.elements, below)
	default:
		t.put(indent, before+" "+t.scalar(n))
	}
}

// list writes the elements of a list.
func (t *text) list(all []*node, indent int) {
	for _, n := range all {
		t.conditional(n, func() {
			switch {
			case n.spread:
				t.spread(n, indent)
			case len(n.fields) > 0:
				t.fields(n.fields, indent+2, "- ")
			default:
				t.put(indent, "- "+t.scalar(n))
			}
		})
	}
}

// conditional writes something that may be absent.
func (t *text) conditional(n *node, write func()) {
	if condition := n.condition(); condition != "" {
		t.put(0, "{{- if "+condition+" }}")
		defer t.put(0, "{{- end }}")
	}
	write()
}

// condition returns when a part is rendered; empty for always.
func (n *node) condition() string {
	when, unless := anyOf(n.when), anyOf(n.unless)
	switch {
	case unless == "":
		return when
	case when == "":
		return "not (" + unless + ")"
	}
	return allOf(when, "not ("+unless+")")
}

// allOf joins two conditions, the second of which may be empty.
func allOf(a, b string) string {
	if b == "" {
		return a
	}
	return "and (" + a + ") (" + b + ")"
}

func anyOf(conditions []string) string {
	if len(conditions) < 2 {
		return strings.Join(conditions, "")
	}
	return "or (" + strings.Join(conditions, ") (") + ")"
}

// scalar returns a value with placeholders replaced by expressions over the values.
func (t *text) scalar(n *node) string {
	switch {
	case n.fields != nil:
		return "{}"
	case n.elements != nil:
		return "[]"
	}
	switch v := n.scalar.(type) {
	case expression:
		return "{{ " + string(v) + " }}"
	case string:
		return t.string(v)
	}
	number := fmt.Sprint(n.scalar)
	for _, w := range t.words {
		if number == w[0] {
			return "{{ int " + w[1] + " }}"
		}
	}
	return number
}

// string returns a text with placeholders replaced by expressions over the values.
func (t *text) string(whole string) string {
	format, used := strings.ReplaceAll(whole, "%", "%%"), []string{}
	for {
		at, word := t.first(format)
		if at < 0 {
			break
		}
		format = format[:at] + "%v" + format[at+len(word[0]):]
		used = append(used, word[1])
	}
	switch {
	case len(used) == 0:
		return plain(whole)
	case format == "%v":
		return "{{ " + used[0] + " | quote }}"
	}
	return "{{ printf " + quoted(format) + " (" + strings.Join(used, ") (") + ") | quote }}"
}

// first returns the position of the first placeholder in a text; negative if there is none.
func (t *text) first(in string) (at int, word [2]string) {
	at = -1
	for _, w := range t.words {
		if i := strings.Index(in, w[0]); i >= 0 && (at < 0 || i < at) {
			at, word = i, w
		}
	}
	return at, word
}

// plain returns a text as YAML writes it.
func plain(s string) string {
	out, err := yaml.Marshal(s)
	if err != nil || strings.Count(string(out), "\n") != 1 {
		return quoted(s)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// quoted returns a text as JSON, YAML and templates write it.
func quoted(s string) string {
	out, err := json.Marshal(s)
	if err != nil {
		return fmt.Sprintf("%q", s)
	}
	return string(out)
}
