package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"volplane.dev/volplane/internal/gather"
)

//go:embed templates assets
var files embed.FS

// renderer renders pages. A page is "head", one of "overview", "claims", "volumes", "mounts" and "about", and "foot".
type renderer struct {
	Plane
	templates *template.Template
}

func newRenderer(p Plane) renderer {
	return renderer{p, template.Must(template.ParseFS(files, "templates/*.html"))}
}

// target is the requested page: the address below the common prefix, in the browser's form.
type target struct {
	kind string
	object
	query
	// address is the target in one form, however it was written.
	address string
	// root leads back to where all pages begin.
	root string
}

var errNoPage = errors.New("this page does not exist")

// targetOf reads an address, "claims?page=2".
func targetOf(address string) (target, error) {
	path, search, _ := strings.Cut(address, "?")
	values, err := url.ParseQuery(search)
	if err != nil {
		return target{}, errNoPage
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if parts[i], err = url.PathUnescape(part); err != nil {
			return target{}, errNoPage
		}
	}
	t := target{root: cmp.Or(strings.Repeat("../", len(parts)-1), "./")}
	switch {
	case path == "":
		t.kind = "overview"
	case path == "claims" || path == "volumes" || path == "mounts":
		t.kind, t.query = path, queryOf(values)
		path += t.query.encode()
	case len(parts) == 4 && parts[0] == "object":
		if parts[2] == noNamespace {
			parts[2] = ""
		}
		t.kind, t.object = "about", object{parts[1], parts[2], parts[3]}
		path = t.object.path()
	default:
		return target{}, errNoPage
	}
	t.address = path
	return t, nil
}

// rendered is a page at one moment.
type rendered struct {
	title string
	// main is the part that is not the same for all pages, and version says which one it is.
	main    []byte
	version string
	status  int
	// partial says that not all could be read.
	partial bool
}

// render shows a page.
func (p renderer) render(ctx context.Context, s *sight, t target) (rendered, error) {
	g, out := glance{s, t.root}, rendered{status: http.StatusOK}
	var data any
	switch t.kind {
	case "overview":
		data, out.title = g.overview(), "Overview"
	case "claims":
		data, out.title = g.claims(t.query), "Claims"
	case "volumes":
		data, out.title = g.volumes(t.query), "Volumes"
	case "mounts":
		data, out.title = g.mounts(t.query), "Volumes by node"
	default:
		about := g.about(ctx, p.Plane, t.object)
		out.partial = about.failed
		if data, out.title = about, about.Subject; about.Gone {
			out.status = http.StatusNotFound
		}
	}
	var b bytes.Buffer
	if err := p.templates.ExecuteTemplate(&b, t.kind, data); err != nil {
		return out, fmt.Errorf("render %s: %w", t.kind, err)
	}
	sum := sha256.Sum256(b.Bytes())
	out.main, out.version = b.Bytes(), base64.RawURLEncoding.EncodeToString(sum[:12])
	return out, nil
}

// frame is what surrounds the main part of a page.
type frame struct {
	Root, Title, Version, Live, Asked string
	Kind                              string
}

// write writes a whole page.
func (p renderer) write(w http.ResponseWriter, r rendered, t target, asked string) error {
	f := frame{
		Root: t.root, Title: r.title, Version: r.version, Kind: t.kind, Asked: asked,
		Live: t.root + "live?" + url.Values{"of": {t.address}, "version": {r.version}}.Encode(),
	}
	var b bytes.Buffer
	if err := p.templates.ExecuteTemplate(&b, "head", f); err != nil {
		return fmt.Errorf("render the head: %w", err)
	}
	b.Write(r.main)
	if err := p.templates.ExecuteTemplate(&b, "foot", f); err != nil {
		return fmt.Errorf("render the foot: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(r.status)
	_, err := w.Write(b.Bytes())
	return err
}

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
	ns := cmp.Or(o.ns, noNamespace)
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
