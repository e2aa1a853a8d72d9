package sidecar

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Kept is the result of moving a sidecar's arguments to a process of several controllers.
type Kept struct {
	// Controllers are those that do the work of the arguments.
	Controllers []string
	// Args are the arguments that change what they do, with the names from AddControllers.
	Args []string
	// Gates are all gates that change what the sidecar does, set or not, except alpha gates that are off. All controllers
	// of a process share them.
	Gates Gates
	// OnNode means that the sidecar works on each node, for the volumes that are created there.
	OnNode bool
	// Lost lists the arguments that have no equivalent there, and the consequences.
	Lost []string
}

// Keep returns the equivalent of a sidecar's arguments in a process of several controllers. Flags for the driver, the
// API server, leases, logs and metrics are not kept, since such a process has its own; nor are flags without effect.
func (r Role) Keep(args []string) Kept {
	var o Options
	set := r.flagSet(r.String(), &o)
	k := Kept{Controllers: slices.Clone(roles()[r].controllers), Gates: Gates{}}
	given := k.read(r, set, args)
	for _, f := range r.Flags() {
		if values := given[f.Name]; len(values) > 0 && f.matters() && k.set(set, f.Name, values) {
			k.keep(&o, r.Prefix(), f.Name, values[len(values)-1])
		}
	}
	k.gates(r, o.raw.gates)
	return k
}

// matters says whether the flag changes what a sidecar does with volumes.
func (f Flag) matters() bool {
	return f.Ignored == "" && !f.ofProgram() && (!f.Shared || f.gates())
}

// gates says whether the flag sets feature gates.
func (f Flag) gates() bool { return f.Name == "feature-gates" || f.Name == groupsFlag }

// read returns the values in arguments for flags of the set.
func (k *Kept) read(r Role, set *pflag.FlagSet, args []string) map[string][]string {
	given := map[string][]string{}
	for len(args) > 0 {
		if !strings.HasPrefix(args[0], "-") && !r.shortFlags() {
			args = args[1:]
			continue
		}
		if strings.Trim(args[0], "-") == "" || !strings.HasPrefix(args[0], "-") {
			return given // the program reads no flag after it
		}
		var name, value string
		name, value, args = next(set, args)
		if set.Lookup(name) == nil {
			k.lose("--"+name, "volplane does not know it, and does not do what it asks for")
			continue
		}
		given[name] = append(given[name], value)
	}
	return given
}

// next reads the first of some arguments, which is a flag, and returns those after it. The argument after an unknown
// flag is its value unless it looks like a flag.
func next(set *pflag.FlagSet, args []string) (name, value string, rest []string) {
	name, value, has := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
	flag, rest := set.Lookup(name), args[1:]
	switch {
	case has:
	case flag != nil && flag.NoOptDefVal != "":
		value = flag.NoOptDefVal
	case len(rest) > 0 && (flag != nil || !strings.HasPrefix(rest[0], "-")):
		value, rest = rest[0], rest[1:]
	}
	return name, value, rest
}

// set gives a flag its values, and says whether they are valid.
func (k *Kept) set(set *pflag.FlagSet, name string, values []string) bool {
	for _, v := range values {
		if strings.Contains(v, "$(") {
			k.lose("--"+name, "its value is in what the environment refers to, and not in the manifest")
			return false
		}
		if err := set.Set(name, v); err != nil {
			k.lose("--"+name, "its value is not understood")
			return false
		}
	}
	return true
}

// keep assigns a flag that is set.
func (k *Kept) keep(o *Options, prefix, name, value string) {
	switch name {
	case "feature-gates", groupsFlag:
	case "enable-capacity":
		if o.raw.capacity {
			k.Controllers = append(k.Controllers, "capacity")
		}
	case "node-deployment":
		k.OnNode = o.raw.nodeDeployment || o.raw.snapshotsOfNode
	case "capacity-ownerref-level":
		if o.raw.ownerLevel >= 0 && o.raw.capacity {
			k.lose("--"+name, "nothing owns the CSIStorageCapacity objects, which stay when the driver is removed")
		}
	default:
		k.Args = append(k.Args, "--"+prefix+"-"+name+"="+value)
	}
}

// gates applies the gates in the arguments, and keeps those that have an effect.
func (k *Kept) gates(r Role, given Gates) {
	known := gates()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := known[name]; !ok && !slices.Contains(strings.Fields(serverGates), name) {
			k.lose("the feature gate "+name, "volplane does not know it")
		}
	}
	var o Options
	o.Roles = k.Controllers
	for _, name := range slices.Sorted(maps.Keys(known)) {
		g := known[name]
		on, said := given[name]
		if g.set == nil || !slices.Contains(g.of, r) {
			continue
		}
		if g.alpha && !on {
			continue
		}
		on = on || !said
		g.set(&o, on)
		k.Gates[name] = on
	}
	k.Controllers = o.Roles
}

func (k *Kept) lose(what, why string) {
	k.Lost = append(k.Lost, fmt.Sprintf("%s is not kept: %s", what, why))
}

// TakesAway says whether one of these controllers does not run with the gates.
func (g Gates) TakesAway(controllers []string) bool {
	var o Options
	o.Roles = slices.Clone(controllers)
	return g.apply(&o) != nil || len(o.Roles) < len(controllers)
}

// groupsFlag is the flag that preceded the gate CSIVolumeGroupSnapshot.
const groupsFlag = "enable-volume-group-snapshots"

// oneGate is a gate that has a flag of its own.
type oneGate struct {
	gates *Gates
	name  string
}

func (v oneGate) Set(text string) error { return v.gates.Set(v.name + "=" + text) }

func (v oneGate) String() string {
	if v.gates == nil {
		return ""
	}
	return fmt.Sprint((*v.gates)[v.name])
}
func (v oneGate) Type() string { return "bool" }
