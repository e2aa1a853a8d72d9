package sidecar

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Flag is one flag of upstream's sidecars.
type Flag struct {
	// Name is the flag's name at upstream's program.
	Name string
	// Of are the sidecars that have it.
	Of []Role
	// Default is what upstream's program assumes, as text.
	Default string
	// Usage says what the flag does.
	Usage string
	// Ignored says why the flag is accepted and does nothing; empty for flags that do something.
	Ignored string
	// Shared means that all sidecars of a process share the flag.
	Shared bool
	// WhenGiven says that upstream's default does not count here, but only an explicit value.
	WhenGiven bool
	// Old says that upstream's program of today does not have the flag: manifests of years ago do, or it is volplane's
	// own.
	Old bool
	// into returns where the value is stored.
	into func(*Options, Role) any
}

// Options are everything that flags set.
type Options struct {
	ControllersOptions
	SnapshotMetadata SnapshotMetadataOptions
	Registrar        RegistrarOptions
	Liveness         LivenessOptions

	// Kubeconfig and Master say where the API server is; both empty for that of the Pod.
	Kubeconfig, Master string
	// QPS and Burst limit the requests to the API server; 0 for no limit.
	QPS   float32
	Burst int
	// Verbosity is klog's.
	Verbosity int
	// LogFormat is "text" or "json".
	LogFormat string
	// Version prints the version and ends.
	Version bool
	// ProbeOnly means that the process was started only to see whether it starts, and exits.
	ProbeOnly bool

	raw raw
}

// raw are values that mean something only together with others.
type raw struct {
	httpEndpoint, metricsAddress, metricsPath string
	healthPort, livenessPort                  string
	pprof                                     bool
	gates                                     Gates
	capacity                                  bool
	ownerLevel                                int
	nodeDeployment, snapshotsOfNode           bool
	timeout, resizerTimeout                   time.Duration
	mode                                      string
	streamMinutes                             int
	withoutMetrics                            bool
}

// Flags returns all flags, in the order of the sidecars.
func Flags() []Flag {
	var out []Flag
	for _, part := range [][]Flag{
		meetingFlags(), httpFlags(), logFlags(), oldFlags(), ownFlags(), paceFlags(), provisionerFlags(), capacityFlags(),
		attacherFlags(),
		resizerFlags(), snapshotterFlags(), snapshotControllerFlags(), healthMonitorFlags(),
		snapshotMetadataFlags(), registrarFlags(), livenessFlags(),
	} {
		out = append(out, part...)
	}
	return out
}

// Flags returns the flags of one sidecar.
func (r Role) Flags() []Flag {
	var out []Flag
	for _, f := range Flags() {
		if f.has(r) {
			out = append(out, f)
		}
	}
	return out
}

func (f Flag) has(r Role) bool { return slices.Contains(f.Of, r) }

// add defines a flag of a role under a name. With upstreams, its default is upstream's, otherwise the zero value.
func (f Flag) add(set *pflag.FlagSet, name string, o *Options, r Role, upstreams bool) {
	value := f.into(o, r)
	switch p := value.(type) {
	case *bool:
		set.BoolVar(p, name, false, f.Usage)
	case *int:
		set.IntVar(p, name, 0, f.Usage)
	case *float32:
		set.Float32Var(p, name, 0, f.Usage)
	case *string:
		set.StringVar(p, name, "", f.Usage)
	case *time.Duration:
		set.DurationVar(p, name, 0, f.Usage)
	case pflag.Value:
		set.Var(p, name, f.Usage)
	default:
		panic(fmt.Sprintf("flag %s has a value of type %T", name, value))
	}
	added := set.Lookup(name)
	if added.Value.Type() == "bool" {
		added.NoOptDefVal = "true"
	}
	added.Hidden = f.Ignored != ""
	if upstreams && f.Default != "" {
		f.preset(added)
	}
}

// preset gives a flag upstream's default.
func (f Flag) preset(added *pflag.Flag) {
	if !f.WhenGiven && f.Ignored == "" {
		if err := added.Value.Set(f.Default); err != nil {
			panic(fmt.Sprintf("default of flag %s: %v", added.Name, err))
		}
	}
	added.DefValue = f.Default
}

// flagSet returns the flags of one sidecar, with upstream's names and defaults.
func (r Role) flagSet(name string, o *Options) *pflag.FlagSet {
	set := pflag.NewFlagSet(name, pflag.ContinueOnError)
	set.SortFlags = true
	set.Usage = func() {}
	for _, f := range r.Flags() {
		f.add(set, f.Name, o, r, true)
	}
	set.Lookup("v").Shorthand = ""
	return set
}

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
