package sidecar

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// ErrHelp is the error for arguments that ask for help.
const ErrHelp = helpError("help is asked for")

type helpError string

// Error returns the text of the error.
func (e helpError) Error() string { return string(e) }

// UsageError says that arguments cannot be understood, for which upstream's programs end with 2.
type UsageError struct{ Err error }

// Error returns the text of what cannot be understood.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

// Parse reads the arguments of a sidecar as upstream's program does, and its environment. It returns the flags without
// effect here, for one warning. The name is the program's, for messages.
func (r Role) Parse(name string, args []string, env func(string) string) (Options, []string, error) {
	var o Options
	o.Roles = slices.Clone(roles()[r].controllers)
	set := r.flagSet(name, &o)
	set.SetInterspersed(!r.shortFlags())
	if err := set.Parse(twoHyphens(args)); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return o, nil, ErrHelp
		}
		return o, nil, &UsageError{fmt.Errorf("%w: '%s --help' shows the flags", err, name)}
	}
	without := r.without(set)
	if err := o.settle(r, set.Changed, env); err != nil || o.ProbeOnly || o.Version {
		return o, without, err
	}
	switch {
	case r == Provisioner:
		// Upstream's provisioner has no default filesystem, and it alone gives precedence to the environment.
		o.Provisioner.WithoutFSType = true
		o.Kubeconfig = cmp.Or(env("KUBECONFIG"), o.Kubeconfig)
	case r == Registrar && o.Registrar.Endpoint == "":
		return o, without, errNoEndpoint
	}
	return o, without, nil
}

var errNoEndpoint = errors.New("--kubelet-registration-path is not given: it is the driver's socket as the kubelet " +
	"sees it")

// without returns the arguments that have no effect, each with the reason.
func (r Role) without(set *pflag.FlagSet) []string {
	var out []string
	for _, f := range r.Flags() {
		if f.Ignored != "" && set.Changed(f.Name) {
			out = append(out, fmt.Sprintf("--%s (%s)", f.Name, f.Ignored))
		}
	}
	if rest := set.Args(); len(rest) > 0 {
		out = append(out, fmt.Sprintf("%q (this is not a flag, and no flag is read after it)", strings.Join(rest, " ")))
	}
	return out
}

// twoHyphens writes the names of flags with two hyphens, which package flag reads with one as well. A negative number
// is the value of the flag before it.
func twoHyphens(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if a == "--" {
			break
		}
		if name, found := strings.CutPrefix(a, "-"); found && name != "" && name[0] != '-' && name != "h" && !isNumber(a) {
			out[i] = "--" + name
		}
	}
	return out
}

// isNumber says whether an argument with one hyphen is a negative number, or a duration. No flag begins with a digit.
func isNumber(arg string) bool {
	return len(arg) > 1 && (arg[1] >= '0' && arg[1] <= '9' || arg[1] == '.')
}

// Help returns the help of a sidecar.
func (r Role) Help(name string) string {
	var o Options
	return fmt.Sprintf("Usage of %s, which volplane runs in place of %s:\n%s", name, r,
		r.flagSet(name, &o).FlagUsagesWrapped(0))
}
