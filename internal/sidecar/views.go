package sidecar

import (
	"strings"

	"github.com/spf13/pflag"
)

// AddControllers defines the flags of a process of several controllers: what all sidecars have once, and the others for
// each sidecar under its prefix, as in Kubernetes' enhancement 4958. Without these flags, volplane's own defaults
// apply. Call Settle afterwards.
func (o *Options) AddControllers(set *pflag.FlagSet) {
	for _, f := range Flags() {
		if f.ofProgram() {
			continue
		}
		for _, r := range electing() {
			switch {
			case !f.has(r):
			case !f.Shared:
				f.add(set, r.Prefix()+"-"+f.Name, o, r, false)
			case set.Lookup(f.Name) == nil:
				f.add(set, f.Name, o, r, true)
			}
		}
	}
	set.DurationVar(&o.raw.timeout, "timeout", 0,
		"time limit of each call of the driver by sidecars whose own flag, such as --provisioner-timeout, is not given")
	elects, owner := set.Lookup("leader-election"), set.Lookup(Provisioner.Prefix()+"-capacity-ownerref-level")
	o.Elects, elects.DefValue = true, "true"
	o.raw.ownerLevel, owner.DefValue = -1, "-1"
}

// ofProgram says that the flag belongs to a program of its own, where "volplane" has its flags for all verbs.
func (f Flag) ofProgram() bool {
	switch f.Name {
	case "version", "kubeconfig", "master", "v":
		return true
	}
	return f.Old && f.Ignored != ""
}

// AddRole defines the flags of one sidecar as those of a verb. Settle must follow.
func (o *Options) AddRole(set *pflag.FlagSet, r Role) {
	for _, f := range r.Flags() {
		if !f.ofProgram() {
			f.add(set, f.Name, o, r, true)
		}
	}
}

// Normalise translates alternative names of flags to those of AddControllers: without the prefix if only one sidecar
// has the flag, and the enhancement's names.
func Normalise(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if strings.HasSuffix(name, "-worker-thread") {
		name += "s"
	}
	// The enhancement gives all sidecars one name of this flag, for which csi-resizer has another name.
	if name == Resizer.Prefix()+"-worker-threads" {
		return pflag.NormalizedName(Resizer.Prefix() + "-workers")
	}
	var of []Role
	for _, f := range Flags() {
		if f.Name != name || f.ofProgram() {
			continue
		}
		if f.Shared {
			return pflag.NormalizedName(name)
		}
		for _, r := range f.Of {
			if r.OfController() {
				of = append(of, r)
			}
		}
	}
	if len(of) == 1 {
		return pflag.NormalizedName(of[0].Prefix() + "-" + name)
	}
	return pflag.NormalizedName(name)
}

// Settle turns the flags of AddControllers or AddRole, and the environment, into the program's options. The role is
// SnapshotMetadata, Registrar or Liveness, or any other for controllers.
func (o *Options) Settle(r Role, set *pflag.FlagSet, env func(string) string) error {
	return o.settle(r, set.Changed, env)
}
