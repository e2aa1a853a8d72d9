package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// mutant is one small change of a file.
type mutant struct {
	number int
	file   string
	// line is where it is shown; from and to are the lines that its text is on.
	line, from, to int
	// change describes it in words.
	change          string
	unbuilt, killed bool
	edits           []edit
}

// edit is text to insert, or to put in the place of the text up to end.
type edit struct {
	at, end int
	text    string
	// closes means that it belongs to a construct that ends there.
	closes bool
}

// finder collects the changes of one file.
type finder struct {
	file   *token.File
	name   string
	source []byte
	next   int
	found  []*mutant
	// results are the types that the functions around a place return,
	// innermost last.
	results [][]string
	// always are edits that change nothing and that others need.
	always []edit
}

func (f *finder) offset(p token.Pos) int { return f.file.Offset(p) }

// text returns the source of a node on one line.
func (f *finder) text(n ast.Node) string {
	return strings.Join(strings.Fields(string(f.source[f.offset(n.Pos()):f.offset(n.End())])), " ")
}

// typeText is the text of a type. The fields of a struct are on lines of their own, which need semicolons on one.
func (f *finder) typeText(e ast.Expr) string {
	s, ok := e.(*ast.StructType)
	if !ok {
		return f.text(e)
	}
	var b strings.Builder
	for _, field := range s.Fields.List {
		for i, name := range field.Names {
			b.WriteString([]string{"", ", "}[min(i, 1)] + name.Name)
		}
		b.WriteString(" " + f.typeText(field.Type) + "; ")
	}
	return "struct { " + b.String() + "}"
}

// short is text that can be shown.
func (f *finder) short(n ast.Node) string {
	if s := []rune(f.text(n)); len(s) > 70 {
		return string(s[:70]) + "..."
	}
	return f.text(n)
}

// add records a change around n; before and after get its number.
func (f *finder) add(n ast.Node, before, after, change string, more ...edit) {
	f.next++
	m := &mutant{
		number: f.next, file: f.name, change: change,
		line: f.file.Line(n.Pos()), from: f.file.Line(n.Pos()), to: f.file.Line(n.End()),
	}
	number := func(s string) string { return strings.ReplaceAll(s, "#", fmt.Sprint(m.number)) }
	begin, end := f.offset(n.Pos()), f.offset(n.End())
	m.edits = append(m.edits, edit{at: begin, end: begin, text: number(before)},
		edit{at: end, end: end, text: number(after), closes: true})
	m.edits = append(m.edits, more...)
	f.found = append(f.found, m)
}

// walk visits a node and its children; outer changes come first.
func (f *finder) walk(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.GenDecl:
			return x.Tok == token.VAR
		case *ast.FuncDecl:
			f.function(x.Type, x.Body)
			return false
		case *ast.FuncLit:
			f.function(x.Type, x.Body)
			return false
		default:
			f.visit(n)
			return true
		}
	})
}

func (f *finder) function(t *ast.FuncType, body *ast.BlockStmt) {
	if body == nil {
		return
	}
	var types []string
	if t.Results != nil {
		for _, r := range t.Results.List {
			for range max(1, len(r.Names)) {
				types = append(types, f.text(r.Type))
			}
		}
	}
	f.results = append(f.results, types)
	f.walk(body)
	f.results = f.results[:len(f.results)-1]
}

func (f *finder) visit(n ast.Node) {
	switch x := n.(type) {
	case *ast.BlockStmt:
		f.statements(x.List)
	case *ast.CaseClause:
		f.statements(x.Body)
	case *ast.CommClause:
		f.statements(x.Body)
	case *ast.IfStmt:
		f.condition(x.Cond)
	case *ast.ForStmt:
		if x.Cond != nil {
			f.condition(x.Cond)
		}
	case *ast.SwitchStmt:
		f.cases(x)
	case *ast.BinaryExpr:
		f.binary(x)
	case *ast.CompositeLit:
		if x.Type != nil {
			f.literal(x, f.typeText(x.Type), false)
		}
	}
}

// condition negates conditions that are not comparisons; comparisons are found wherever they are.
func (f *finder) condition(e ast.Expr) {
	if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && (b.Op.Precedence() == 3 || logical(b.Op)) {
		return
	}
	f.add(e, "(mutantOn(#) != (", "))", "negated: "+f.short(e))
}

func (f *finder) cases(s *ast.SwitchStmt) {
	if s.Tag != nil {
		return
	}
	for _, clause := range s.Body.List {
		for _, e := range clause.(*ast.CaseClause).List {
			f.condition(e)
		}
	}
}

func logical(t token.Token) bool { return t == token.LAND || t == token.LOR }

func (f *finder) binary(x *ast.BinaryExpr) {
	switch {
	case logical(x.Op):
		for _, side := range []ast.Expr{x.X, x.Y} {
			if b, ok := side.(*ast.BinaryExpr); ok && b.Op == x.Op {
				continue // its own sides are dropped
			}
			if x.Op == token.LAND {
				f.add(side, "(mutantOn(#) || (", "))", "dropped from &&: "+f.short(side))
			} else {
				f.add(side, "(!mutantOn(#) && (", "))", "dropped from ||: "+f.short(side))
			}
		}
	case x.Op.Precedence() == 3:
		f.add(x, "(mutantOn(#) != (", "))", "negated: "+f.short(x))
		f.boundary(x)
	}
}

// boundary includes equality of the two sides, or excludes it.
func (f *finder) boundary(x *ast.BinaryExpr) {
	to := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}[x.Op]
	if to == "" {
		return
	}
	at := f.offset(x.OpPos)
	before := fmt.Sprintf("mutantOrder(#, %q, ", x.Op)
	f.add(x, before, ")", "boundary: "+f.short(x)+" with "+to, edit{at: at, end: at + len(x.Op.String()), text: ","})
}

func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch x := s.(type) {
		case *ast.ReturnStmt:
			f.returned(x)
		case *ast.ExprStmt:
			if !f.harmless(x.X) {
				f.remove(s)
			}
		case *ast.DeferStmt:
			if !f.harmless(x.Call) {
				f.remove(s)
			}
		case *ast.AssignStmt:
			if x.Tok != token.DEFINE && f.text(x.Lhs[0]) != "_" {
				f.remove(s)
			}
		case *ast.IncDecStmt, *ast.GoStmt, *ast.SendStmt:
			f.remove(s)
		}
	}
}

func (f *finder) remove(s ast.Stmt) {
	f.add(s, "if !mutantOn(#) { ", " }", "removed: "+f.short(s))
}

// harmless says that no unit test has to notice a missing call: it logs, locks, cleans up after the end, or panics.
func (f *finder) harmless(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return slices.Contains([]string{"panic", "cancel", "stop"}, fun.Name)
	case *ast.SelectorExpr:
		on := strings.ToLower(f.text(fun.X))
		return slices.Contains([]string{"Lock", "Unlock", "RLock", "RUnlock", "Close"}, fun.Sel.Name) || on == "log" ||
			on == "slog" || strings.HasSuffix(on, ".log")
	}
	return false
}

// returned makes a function return the zero values of its results instead.
func (f *finder) returned(r *ast.ReturnStmt) {
	types := f.results[len(f.results)-1]
	if len(r.Results) == 0 || !slices.ContainsFunc(r.Results, func(e ast.Expr) bool { return !f.zero(e) }) {
		return
	}
	zeros := make([]string, 0, len(types))
	for _, t := range types {
		zeros = append(zeros, "*new("+t+")")
	}
	f.add(r, "if mutantOn(#) { return "+strings.Join(zeros, ", ")+" }; ", "", "returned zero: "+f.short(r))
}

func (f *finder) zero(e ast.Expr) bool {
	t := f.text(e)
	return slices.Contains([]string{"nil", "false", "0", `""`}, t) || strings.HasSuffix(t, "{}")
}

// literal drops the fields of a struct, one by one, and visits elements that leave out
// their type.
func (f *finder) literal(x *ast.CompositeLit, typ string, pointer bool) {
	switch t := x.Type.(type) {
	case *ast.ArrayType:
		f.elements(x, t.Elt)
		return
	case *ast.MapType:
		f.elements(x, t.Value)
		return
	}
	for _, e := range x.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if key, ok := pair.Key.(*ast.Ident); ok && !f.zero(pair.Value) {
			before, after := "mutantWith(", fmt.Sprintf(", func(v *%s) { if mutantOn(#) { mutantZero(&v.%s) } })", typ, key.Name)
			if pointer || f.addressed(x) {
				before = "mutantWithPointer("
			}
			f.field(x, pair, before, after)
		}
	}
}

// field notes that a field of a literal is dropped; the text is around the whole
// literal.
func (f *finder) field(x *ast.CompositeLit, pair *ast.KeyValueExpr, before, after string) {
	var whole ast.Node = x
	if f.addressed(x) {
		whole = &ast.UnaryExpr{OpPos: x.Pos() - 1, Op: token.AND, X: x}
	}
	f.add(whole, before, after, "dropped: "+f.short(pair))
	f.found[len(f.found)-1].line = f.file.Line(pair.Pos())
}

// addressed says whether & is just before a literal.
func (f *finder) addressed(x *ast.CompositeLit) bool {
	at := f.offset(x.Pos())
	return x.Type != nil && at > 0 && f.source[at-1] == '&'
}

func (f *finder) elements(x *ast.CompositeLit, element ast.Expr) {
	for _, e := range x.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			e = pair.Value
		}
		if lit, ok := e.(*ast.CompositeLit); ok && lit.Type == nil {
			f.untyped(lit, element)
		}
	}
}

// untyped is a literal without its type; text around it needs the type.
func (f *finder) untyped(x *ast.CompositeLit, element ast.Expr) {
	at, typ := f.offset(x.Pos()), f.typeText(element)
	star, pointer := element.(*ast.StarExpr)
	if pointer {
		typ = f.typeText(star.X)
		f.literal(x, typ, true)
		typ = "&" + typ
	} else {
		f.literal(x, typ, false)
	}
	f.always = append(f.always, edit{at: at, end: at, text: typ})
}
