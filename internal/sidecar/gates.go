package sidecar

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Gates are feature gates that were set, by name.
type Gates map[string]bool

// Set reads NAME=true|false, separated by commas. It may be repeated.
func (g *Gates) Set(text string) error {
	if *g == nil {
		*g = Gates{}
	}
	for _, pair := range strings.Split(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if !found || err != nil {
			return fmt.Errorf("%q is not a gate: write NAME=true or NAME=false, separated by commas", pair)
		}
		(*g)[strings.TrimSpace(name)] = on
	}
	return nil
}

// GatesIn returns the gates that arguments of a program set. What cannot be read is left to the program.
func GatesIn(args []string) Gates {
	g := Gates{}
	for i, a := range args {
		value, has := strings.CutPrefix(a, "--feature-gates=")
		if !has && a == "--feature-gates" && i+1 < len(args) {
			value, has = args[i+1], true
		}
		if has {
			_ = g.Set(value)
		}
	}
	return g
}

// String returns the gates in the syntax of the flag.
func (g *Gates) String() string {
	if g == nil {
		return ""
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(*g)) {
		out = append(out, fmt.Sprintf("%s=%v", name, (*g)[name]))
	}
	return strings.Join(out, ",")
}

// Type is what help calls the value.
func (g *Gates) Type() string { return "gates" }

// gate is a feature gate that a sidecar has.
type gate struct {
	of []Role
	// set applies the gate; nil if nothing depends on it here.
	set func(o *Options, on bool)
	// alpha says that it is off unless it is set.
	alpha bool
}

// gates returns the gates of the sidecars.
func gates() map[string]gate {
	return map[string]gate{
		"Topology": {of: with(Provisioner), set: func(o *Options, on bool) {
			o.Provisioner.WithoutTopology = !on
		}},
		"CrossNamespaceVolumeDataSource": {of: with(Provisioner), alpha: true, set: func(o *Options, on bool) {
			o.Provisioner.OtherNamespaces = on
		}},
		"VolumeAttributesClass": {of: with(Provisioner, Resizer), set: func(o *Options, on bool) {
			o.Provisioner.WithoutAttributes = !on
			o.unless(on, "modifier")
		}},
		"CSIVolumeGroupSnapshot": {of: with(Snapshotter, SnapshotController), set: func(o *Options, on bool) {
			o.SnapshotController.WithoutGroups = !on
			o.unless(on, "group-snapshotter")
		}},
		"VolumeSnapshotTopology": {of: with(Snapshotter), alpha: true, set: func(o *Options, on bool) {
			o.Snapshotter.Topology = on
		}},
		"AnnotateFsResize":               {of: with(Resizer)},
		"MutableCSINodeAllocatableCount": {of: with(Attacher)},
		"ReleaseLeaderElectionOnExit":    {of: electing()},
		// Charts still set these, which upstream's sidecars have no longer because they are always on.
		"HonorPVReclaimPolicy":          {of: with(Provisioner)},
		"RecoverVolumeExpansionFailure": {of: with(Resizer)},
	}
}

// Alpha says whether a gate is off unless it is set.
func Alpha(name string) bool { return gates()[name].alpha }

// unless removes a controller unless its gate is on.
func (o *Options) unless(on bool, controller string) {
	if !on {
		o.Roles = slices.DeleteFunc(o.Roles, func(r string) bool { return r == controller })
	}
}

// apply applies the gates to the options. An unknown gate is an error, as upstream: it is probably misspelt.
func (g Gates) apply(o *Options) error {
	known := gates()
	for _, name := range slices.Sorted(maps.Keys(g)) {
		found, ok := known[name]
		switch {
		case !ok && !slices.Contains(strings.Fields(serverGates), name):
			return fmt.Errorf("--feature-gates: %s is not a gate of a sidecar: use some of %s", name,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case ok && found.set != nil:
			found.set(o, g[name])
		}
	}
	return nil
}

// serverGates are those that the libraries of an API server bring into upstream's programs, which do not use them.
const serverGates = `
APIResponseCompression APIServerIdentity APIServerWebhookAuthenticationToken APIServingWithRoutine AllAlpha
AllBeta AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
ComponentFlagz ComponentStatusz ConcurrentWatchObjectDecode ConsistentListFromCacheSkipTimeoutFallback
ConstrainedImpersonation CoordinatedLeaderElection DeclarativeValidationBeta DetectCacheInconsistency
EtcdRangeStream ExcludeAdmissionWebhookVirtualResources ListFromCacheSnapshot
ManifestBasedAdmissionControlConfig NativeHistograms OpenAPIEnums RemoteRequestHeaderUID ShardedListAndWatch
SizeBasedListCostEstimate StorageVersionAPI StorageVersionHash
StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
TokenRequestServiceAccountUIDValidation UnauthenticatedHTTP2DOSMitigation
UnknownVersionInteroperabilityProxy WatchCacheInitializationPostStartHook WatchList WatchListCompression
WebhookRoundTripLoadBalancing
`
