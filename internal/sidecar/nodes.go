package sidecar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Node is the configuration of one of a node's sidecars.
type Node struct {
	Role Role
	Options
}

// ParseNode reads the arguments of a process of several of a node's sidecars: --controllers names them, a flag that
// begins with the name of one is for this one, and any other is for all of them. It also returns the flags without
// effect.
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
	if err := checkAddresses(out); err != nil {
		return nil, nil, err
	}
	slices.Sort(without)
	return out, slices.Compact(without), nil
}

// checkAddresses refuses an address that two programs of the process would listen at.
func checkAddresses(nodes []Node) error {
	taken := map[string]Role{}
	for _, n := range nodes {
		for _, a := range n.listens() {
			if r, twice := taken[a]; twice && r != n.Role {
				return fmt.Errorf("%s and %s cannot both listen at %s: give each an address of its own, such as "+
					"--%s-http-endpoint=:9809 and --%s-http-endpoint=:9808", r, n.Role, a, roles()[Registrar].programs[1], Liveness)
			}
			taken[a] = n.Role
		}
	}
	return nil
}

// listens returns the addresses of a program.
func (n Node) listens() []string {
	out := addresses(n.Registrar.Health)
	if n.Role == Liveness {
		out = addresses(n.Liveness.Address)
		for _, h := range n.Liveness.HTTP {
			out = append(out, h.Address)
		}
	}
	// The system chooses a different port for each address with port 0.
	return slices.DeleteFunc(out, func(a string) bool { return strings.HasSuffix(a, ":0") })
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
			if !known || !r.OfNode() {
				return nil, nil, fmt.Errorf("%q is not a program of a node", program)
			}
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, errNoNode
	}
	return chosen, rest, nil
}

// argumentsOf returns the arguments for one role. A value in a separate argument belongs to the flag before it.
func argumentsOf(r Role, args []string) []string {
	var out []string
	ours := true
	for _, a := range args {
		if !strings.HasPrefix(a, "-") || isNumber(a) {
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
