package driverfile

import (
	"maps"
	"slices"
	"strings"
)

// Expand returns a text in which $(NAME) is replaced by the variable of that name, as Kubernetes
// does in the command of a container: $$ stands for $, so that $$(NAME) is the text $(NAME), and a
// reference to an unknown variable stays. Values are not expanded again.
func Expand(text string, vars map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(rest, ")")
		value, known := vars[strings.TrimPrefix(name, "(")]
		switch {
		case strings.HasPrefix(rest, "$"):
			text = rest[1:]
			out.WriteByte('$')
		case closed && known && strings.HasPrefix(rest, "("):
			text = after
			out.WriteString(value)
		case closed && strings.HasPrefix(rest, "("):
			text = after
			out.WriteString("$" + name + ")")
		default:
			text = rest
			out.WriteByte('$')
		}
	}
}

// Start returns the command line and the environment, as K=V in the order of the names, with which a process is
// started. host are the variables that the host sets, VarEndpoint and VarNode among them, and secrets has the values of
// EnvFromSecret by the names of the variables.
func (p Process) Start(host, secrets map[string]string) (argv, env []string) {
	all := map[string]string{}
	maps.Copy(all, host)
	maps.Copy(all, secrets)
	for name, value := range p.Env {
		all[name] = Expand(value, host)
	}
	for _, arg := range p.Exec {
		argv = append(argv, Expand(arg, all))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return argv, env
}
