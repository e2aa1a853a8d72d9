package sidecar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Node is what one of a node's sidecars is told to do.
type Node struct {
	Role Role
	Options
}

// ParseNode reads the arguments of a process of several of a node's sidecars: --controllers names them, a flag that
// begins with the name of one is for this one, and any other is for all of them. It returns also what has no effect.
func ParseNode(name string, args []string, env func(string) string) ([]Node, []string, error) {
	chosen, rest, err := chosenNodes(args)
	if err != nil {
		return nil, nil, &UsageError{
			fmt.Errorf("%w: name node-driver-registrar, livenessprobe or both in --controllers", err),
		}
	}
	var out []Node
	var without []string
	for _, r := range chosen {
		o, none, err := r.Parse(name, argumentsOf(r, rest), env)
		if err != nil {
			return nil, nil, err
		}
		out, without = append(out, Node{r, o}), append(without, none...)
	}
	slices.Sort(without)
	return out, slices.Compact(without), nil
}

var errNoNode = errors.New("no program is chosen")

// chosenNodes takes --controllers from arguments.
func chosenNodes(args []string) (chosen []Role, rest []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, has := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if name != "controllers" {
			rest = append(rest, args[i])
			continue
		}
		if !has && i+1 < len(args) {
			i++
			value = args[i]
		}
		for program := range strings.SplitSeq(value, ",") {
			r, known := RoleOf(program)
			if !known || r != Registrar && r != Liveness {
				return nil, nil, fmt.Errorf("%q is no program of a node", program)
			}
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, errNoNode
	}
	return chosen, rest, nil
}

// argumentsOf returns the arguments that are for one role. A value that is an argument of its own goes with its flag.
func argumentsOf(r Role, args []string) []string {
	var out []string
	ours := true
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			if ours {
				out = append(out, a)
			}
			continue
		}
		name := strings.TrimLeft(a, "-")
		ours = true
		for _, of := range []Role{Registrar, Liveness} {
			for _, program := range roles()[of].programs {
				if flag, found := strings.CutPrefix(name, program+"-"); found {
					name, ours = flag, of == r
				}
			}
		}
		if ours {
			out = append(out, "--"+name)
		}
	}
	return out
}
