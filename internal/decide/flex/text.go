package flex

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

const (
	// maxShown bounds, in bytes, what of a wrong name is shown.
	maxShown = 100
	// MaxMessage bounds, in bytes, what of a driver's words is shown.
	MaxMessage = 1 << 10
)

// maxSearch bounds the search for secrets, in bytes times forms of secrets.
const maxSearch = 1 << 32

// wrapAt is where base64(1) breaks lines.
const wrapAt = 76

// hidden stands where a secret stood.
const hidden = "***"

// Redact returns a driver's words as they may be shown: without the values of
// the secrets, as they are, in base64 or in JSON, on one line, and not longer
// than MaxMessage.
func Redact(text string, secrets map[string]string) string {
	var forms []string
	for _, value := range secrets {
		forms = append(forms, formsOf(value)...)
	}
	// A secret that is a part of another one must not break it before it is
	// found.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	forms = slices.Compact(forms)
	if len(text)*len(forms) > maxSearch {
		return "(more text and secrets than can be searched)"
	}
	for _, form := range forms {
		text = strings.ReplaceAll(text, form, hidden)
	}
	return plainText(text)
}

// formsOf returns the texts in which a secret may appear.
func formsOf(value string) []string {
	b := []byte(value)
	forms := []string{
		value, strings.TrimSpace(value), inJSON(value, true), inJSON(value, false),
		base64.StdEncoding.EncodeToString(b), base64.RawStdEncoding.EncodeToString(b),
		base64.URLEncoding.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b),
	}
	// A shell cuts a value of many lines into them, and shows quotes in its trace
	// in one of two ways; base64(1) breaks lines.
	for line := range strings.Lines(value) {
		line = strings.TrimSpace(line)
		forms = append(forms, line, url.QueryEscape(line), url.PathEscape(line),
			strings.ReplaceAll(line, "'", `'\''`), strings.ReplaceAll(line, "'", `'"'"'`))
	}
	if wide := base64.StdEncoding.EncodeToString(b); len(wide) > wrapAt {
		for line := range slices.Chunk([]byte(wide), wrapAt) {
			if len(line) > len(hidden) {
				forms = append(forms, string(line))
			}
		}
	}
	return slices.DeleteFunc(forms, func(s string) bool { return s == "" })
}

// inJSON returns a text as it is between the quotes of JSON.
func inJSON(value string, html bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(value) != nil {
		return ""
	}
	return strings.TrimSuffix(b.String(), "\"\n")[1:]
}

// plainText makes one printable line of any bytes.
func plainText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
	return bounded(strings.Join(strings.Fields(s), " "), MaxMessage)
}

// bounded cuts a text at a number of bytes, between two characters.
func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
