package sidecar

import (
	"path"
	"slices"
)

// Role is one of upstream's sidecars.
type Role int

// The sidecars that have a place here.
const (
	Provisioner Role = iota
	Attacher
	Resizer
	Snapshotter
	SnapshotController
	HealthMonitor
	SnapshotMetadata
	Registrar
	Liveness
)

// role is what is fixed about a sidecar.
type role struct {
	// programs are the names of upstream's programs, the usual one first.
	programs []string
	// controllers are the names of the controllers here that do the program's work.
	controllers []string
	// prefix begins the sidecar's flags in a process of several.
	prefix string
}

func roles() []role {
	return []role{
		Provisioner: {[]string{"csi-provisioner"}, []string{"provisioner"}, "provisioner"},
		Attacher:    {[]string{"csi-attacher"}, []string{"attacher"}, "attacher"},
		Resizer:     {[]string{"csi-resizer"}, []string{"resizer", "modifier"}, "resizer"},
		Snapshotter: {
			[]string{"csi-snapshotter"}, []string{"snapshotter", "group-snapshotter"}, "snapshotter",
		},
		SnapshotController: {[]string{"snapshot-controller"}, []string{"snapshot-controller"}, "snapshot-controller"},
		HealthMonitor: {
			[]string{"csi-external-health-monitor-controller"}, []string{"health"}, "health-monitor",
		},
		SnapshotMetadata: {[]string{"csi-snapshot-metadata"}, nil, "snapshot-metadata"},
		Registrar:        {[]string{"csi-node-driver-registrar", "node-driver-registrar"}, nil, "registrar"},
		Liveness:         {[]string{"livenessprobe"}, nil, "liveness"},
	}
}

// Programs returns the names of upstream's programs that this one answers to.
func Programs() []string {
	var out []string
	for _, r := range roles() {
		out = append(out, r.programs...)
	}
	return out
}

// RoleOf returns the role whose program has the file name in argument 0 of a process.
func RoleOf(arg0 string) (Role, bool) {
	for i, r := range roles() {
		if slices.Contains(r.programs, path.Base(arg0)) {
			return Role(i), true
		}
	}
	return 0, false
}

// String returns the usual name of upstream's program.
func (r Role) String() string { return roles()[r].programs[0] }

// Prefix begins the role's flags in a process of several roles.
func (r Role) Prefix() string { return roles()[r].prefix }

// OfNode says that the role's program runs beside the driver on each node, not beside its controller.
func (r Role) OfNode() bool { return r == Registrar || r == Liveness }

// OfController says that the role runs controllers, several of which can share one process.
func (r Role) OfController() bool { return len(roles()[r].controllers) > 0 }

// shortFlags says that upstream's program reads flags as package flag does: a program's own names may have one hyphen,
// and parsing stops at the first argument that is not a flag. Only one of the programs does not.
func (r Role) shortFlags() bool { return r != Provisioner }

// with returns the roles with these ones.
func with(all ...Role) []Role { return all }

// controllers are the roles that have the flags which csi-lib-utils registers.
func controllers() []Role { return with(Provisioner, Attacher, Resizer, Snapshotter, HealthMonitor) }

// everyone are all roles.
func everyone() []Role { return append(logging(), SnapshotMetadata) }

// logging are the roles with the flags of Kubernetes' logs; the other one has klog's own.
func logging() []Role {
	return append(controllers(), SnapshotController, Registrar, Liveness)
}

// clients are the roles that need the API server.
func clients() []Role { return append(electing(), SnapshotMetadata) }

// electing are the roles that take part in a leader election.
func electing() []Role { return append(controllers(), SnapshotController) }
