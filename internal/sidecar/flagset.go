package sidecar

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

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
