package sidecar

import (
	"slices"
	"time"
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
