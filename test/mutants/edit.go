package main

import (
	"cmp"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// support is the code that changed files use. MUTANT is the number of the active change; with MUTANT_TRACE the numbers
// of the changes that are reached are added to that file.
const support = `
import (
	"cmp"
	"os"
	"strconv"
	"sync"
)

var (
	mutantNumber, _ = strconv.Atoi(os.Getenv("MUTANT"))
	mutantTrace     = os.Getenv("MUTANT_TRACE")
	mutantSeen      sync.Map
)

func mutantOn(n int) bool {
	if mutantTrace != "" {
		mutantNote(n)
	}
	return n == mutantNumber
}

func mutantNote(n int) {
	if _, seen := mutantSeen.LoadOrStore(n, true); seen {
		return
	}
	f, err := os.OpenFile(mutantTrace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	if _, err := f.WriteString(strconv.Itoa(n) + "\n"); err != nil {
		panic(err)
	}
	f.Close()
}

func mutantOrder[T cmp.Ordered](n int, op string, a, b T) bool {
	equal := mutantOn(n) && a == b
	switch op {
	case "<":
		return a < b || equal
	case "<=":
		return a <= b && !equal
	case ">":
		return a > b || equal
	}
	return a >= b && !equal
}

func mutantWith[T any](v T, f func(*T)) T { f(&v); return v }

func mutantWithPointer[T any](v *T, f func(*T)) *T { f(v); return v }

func mutantZero[T any](p *T) { var zero T; *p = zero }
`

// changed is a file with all its changes.
type changed struct {
	source  []byte
	mutants []*mutant
	always  []edit
}

// find returns the changes of a file; their numbers begin after first.
func find(name string, source []byte, first int) (*changed, error) {
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &finder{file: set.File(syntax.Pos()), name: name, source: source, next: first}
	f.walk(syntax)
	return &changed{source: source, mutants: f.found, always: f.always}, nil
}

// text returns the file with all changes that can be built in it, on the same
// lines.
func (c *changed) text() []byte {
	var edits []edit
	for _, m := range c.mutants {
		if !m.unbuilt {
			edits = append(edits, m.edits...)
		}
	}
	// Ends come before beginnings, the innermost first; the first one found is the outermost.
	var opens, closes []edit
	for _, e := range append(edits, c.always...) {
		if e.closes {
			closes = append(closes, e)
		} else {
			opens = append(opens, e)
		}
	}
	slices.Reverse(closes)
	edits = append(closes, opens...)
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
	var out strings.Builder
	at := 0
	for _, e := range edits {
		out.Write(c.source[at:e.at])
		out.WriteString(e.text)
		at = e.end
	}
	out.Write(c.source[at:])
	return []byte(out.String())
}

// refuse drops changes whose text is on a line that does not build, and says whether there were any.
func (c *changed) refuse(line int) bool {
	var on []*mutant
	for _, m := range c.mutants {
		if !m.unbuilt && (m.from == line || m.to == line) {
			on = append(on, m)
		}
	}
	// The most frequent cause is the type of a result whose name means something else here.
	if i := slices.IndexFunc(on, func(m *mutant) bool { return strings.HasPrefix(m.change, "returned") }); i >= 0 {
		on = on[i : i+1]
	}
	for _, m := range on {
		m.unbuilt = true
	}
	return len(on) > 0
}
