package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// node is a part of an object that may depend on values.
type node struct {
	// key is the name of a field; empty for the element of a list.
	key string
	// when are alternative conditions, one of which must hold; empty means always. None of the conditions in unless may
	// hold.
	when, unless []string
	// expr is where the whole part is in the values. A spread part has the same place as its fellows.
	expr   string
	spread bool
	// fields are those of an object, elements those of a list, and scalar is any other value.
	fields, elements []*node
	scalar           any
}

// A text with this prefix means that a part of the object comes from the values: as many levels above the text as the
// number says, or, with a star, as siblings of the field or element that contains it.
const mark = "values:"

// at returns such a text.
func at(levels int, expr string) string { return fmt.Sprint(mark, levels, ":", expr) }

// among returns the text for values that join those around it.
func among(expr string) string { return mark + "*:" + expr }

// place is what a text says about a part above it.
type place struct {
	levels int
	spread bool
	expr   string
}

func placeOf(text string) place {
	rest, is := strings.CutPrefix(text, mark)
	if !is {
		return place{}
	}
	levels, expr, _ := strings.Cut(rest, ":")
	p := place{expr: expr, spread: levels == "*"}
	if !p.spread {
		p.levels = int(levels[0] - '0')
	}
	return p
}

// tree returns the parts of a value, and expressions in it about a part above.
func tree(key string, v any) (*node, place) {
	switch v := v.(type) {
	case map[string]any:
		return objectTree(key, v)
	case []any:
		return listTree(key, v)
	case string:
		return &node{key: key, scalar: v}, placeOf(v)
	}
	return &node{key: key, scalar: v}, place{}
}

func objectTree(key string, v map[string]any) (*node, place) {
	n := &node{key: key, fields: []*node{}}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if p := placeOf(name); p.spread {
			n.fields = append(n.fields, &node{expr: p.expr, spread: true})
			continue
		}
		field, p := tree(name, v[name])
		if p.spread {
			return field, p
		}
		if p.expr != "" {
			return above(key, p)
		}
		n.fields = append(n.fields, field)
	}
	return n.whole(n.fields), place{}
}

func listTree(key string, v []any) (*node, place) {
	n := &node{key: key, elements: []*node{}}
	for _, e := range v {
		element, p := tree("", e)
		if p.spread {
			n.elements = append(n.elements, &node{expr: p.expr, spread: true})
			continue
		}
		if p.expr != "" {
			return above(key, p)
		}
		n.elements = append(n.elements, element)
	}
	return n.whole(n.elements), place{}
}

// whole returns the part as an expression if it has nothing else.
func (n *node) whole(parts []*node) *node {
	if len(parts) == 1 && parts[0].spread {
		return &node{key: n.key, expr: parts[0].expr}
	}
	return n
}

// above returns the node for the key whose place a part of it takes, or passes the place on to the level above.
func above(key string, p place) (*node, place) {
	if p.levels--; p.levels == 0 {
		return &node{key: key, expr: p.expr}, place{}
	}
	return nil, p
}

// identity says which elements of two lists are the same one.
func (n *node) identity() string {
	for _, f := range n.fields {
		if f.key == "name" && f.scalar != nil {
			return fmt.Sprint(f.scalar)
		}
	}
	return n.text()
}

// text returns the part without its conditions.
func (n *node) text() string {
	var below []string
	for _, c := range slices.Concat(n.fields, n.elements) {
		below = append(below, c.text())
	}
	text, err := json.Marshal(n.scalar)
	if err != nil {
		return fmt.Sprint(n.scalar)
	}
	return fmt.Sprint(n.key, n.expr, n.spread, string(text), below)
}

// overlay adds the differences of a variant to a tree, which are rendered if a condition holds.
func (n *node) overlay(variant *node, condition string) error {
	fields, err := merge(n.fields, variant.fields, condition, func(c *node) string { return c.key + c.expr })
	if err != nil {
		return err
	}
	elements, err := merge(n.elements, variant.elements, condition, (*node).identity)
	if err != nil {
		return err
	}
	if len(fields)+len(elements) > 0 {
		n.fields, n.elements = fields, elements
	}
	return nil
}

// merge joins the fields or elements of two variants in their order.
func merge(base, variant []*node, condition string, identity func(*node) string) ([]*node, error) {
	has := func(all []*node, n *node) bool {
		return slices.ContainsFunc(all, func(o *node) bool { return identity(o) == identity(n) })
	}
	var out []*node
	for len(base) > 0 || len(variant) > 0 {
		switch {
		case len(base) > 0 && !has(variant, base[0]):
			// A part with conditions belongs to another variant, and is not expected here.
			if len(base[0].when) == 0 {
				base[0].unless = append(base[0].unless, condition)
			}
			out, base = append(out, base[0]), base[1:]
		case !has(base, variant[0]):
			variant[0].when = append(variant[0].when, condition)
			out, variant = append(out, variant[0]), variant[1:]
		case identity(base[0]) != identity(variant[0]):
			return nil, fmt.Errorf("%s has another order if %s", identity(variant[0]), condition)
		default:
			both, err := base[0].join(variant[0], condition)
			if err != nil {
				return nil, err
			}
			out, base, variant = append(out, both...), base[1:], variant[1:]
		}
	}
	return out, nil
}

// join merges a part that is in both: itself with its differences, or both if it has no parts.
func (n *node) join(variant *node, condition string) ([]*node, error) {
	if len(n.fields)+len(n.elements) > 0 || n.text() == variant.text() {
		return []*node{n}, n.overlay(variant, condition)
	}
	n.unless, variant.when = append(n.unless, condition), append(variant.when, condition)
	return []*node{n, variant}, nil
}
