package app

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/modifier"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/controller/snapshotter"
	decide "volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

// Sidecars are what the user of the controllers beside a driver has chosen. A zero value is a control plane's own way.
type Sidecars struct {
	// BlockFSType is the filesystem type of volumes that certainly are block devices, if nothing else names one.
	BlockFSType string
	// Identity is what the volumes say of their provisioner.
	Identity string
	// CapacityHome is where the capacity objects are.
	CapacityHome decide.Home
	sidecar.Choices
}

// usualFSType is the filesystem type that upstream's manifests give as a default.
const usualFSType = "ext4"

// sidecarsOf returns what a program's user has chosen for the controllers of a driver.
func sidecarsOf(ctx context.Context, o options.ControllersOptions, driver string) (s Sidecars, err error) {
	s = Sidecars{Identity: provisionerIdentity(driver, o.Provisioner.OnNode.Node, time.Now()), Choices: o.Choices}
	if !o.Provisioner.WithoutFSType {
		s.BlockFSType = usualFSType
	}
	if slices.Contains(o.Roles, capacity.Declaration().Name) {
		if o.CapacityOwner != nil {
			s.CapacityHome, err = capacity.Owner(*o.CapacityOwner).Home(ctx, o.Config)
		}
		s.CapacityHome.Node = o.Provisioner.OnNode.Node
	}
	return s, err
}

// provisionerIdentity returns the identity of a provisioner in the form of upstream's; node is empty unless it is for
// the volumes of that node alone.
func provisionerIdentity(driver, node string, now time.Time) string {
	const most = 10_000
	id := fmt.Sprintf("%d-%d-%s", now.UnixMilli(), rand.IntN(most), driver) //nolint:gosec // it is no secret
	if node != "" {
		id += "-" + node
	}
	return id
}

// health returns how drivers are asked for the health of volumes.
func (s Sidecars) health() health.Options {
	o := s.HealthMonitor
	return health.Options{Every: o.Every, Timeout: o.Timeout, Volumes: o.Workers, Wanted: s.Identity != ""}
}

// contest returns how the provisioner takes claims for which those of other nodes compete.
func (s Sidecars) contest() provisioner.Contest {
	o := s.Provisioner.OnNode
	return provisioner.Contest{Off: o.WithoutImmediate, BaseDelay: o.BaseDelay, MaxDelay: o.MaxDelay}
}

// choices returns what the decisions of the provisioner depend on.
func (s Sidecars) choices() provision.Options {
	o := s.Provisioner
	return provision.Options{
		NamePrefix: o.NamePrefix, NameLength: o.NameLength, DefaultFSType: o.DefaultFSType, BlockFSType: s.BlockFSType,
		ExtraMetadata: o.ExtraMetadata, PublishReadOnly: o.PublishReadOnly, AllowModeConversion: o.AllowModeConversion,
		StrictTopology: o.StrictTopology, WithoutImmediateTopology: o.WithoutImmediateTopology,
		WithoutAttributes: o.WithoutAttributes, OtherNamespaces: o.OtherNamespaces,
	}
}

// pace returns how a controller calls the driver.
func (s Sidecars) pace(role string) sidecar.Pace {
	switch role {
	case provisioner.Declaration().Name:
		return s.Provisioner.Pace
	case capacity.Declaration().Name:
		// Capacities have an interval of their own.
		return sidecar.Pace{Timeout: s.Provisioner.Timeout}
	case attacher.Declaration().Name:
		return s.Attacher.Pace
	case resizer.Declaration().Name:
		return s.Resizer.Pace
	case modifier.Declaration().Name:
		p := s.Resizer.Pace
		p.Timeout = cmp.Or(s.Resizer.ModifyTimeout, p.Timeout)
		return p
	case snapshotter.Declaration().Name, groupsnapshotter.Declaration().Name:
		return s.Snapshotter.Pace
	case snapshotter.BindingDeclaration().Name, groupsnapshotter.BindingDeclaration().Name:
		return s.SnapshotController.Pace
	}
	return sidecar.Pace{}
}

// ownPace returns what a controller has to know of its pace itself.
func ownPace(p sidecar.Pace) controller.Pace {
	return controller.Pace{RetryMin: p.RetryStart, RetryMax: p.RetryMax, Workers: p.Workers}
}

// snapshots returns what the decisions about snapshots depend on. In the place of upstream's program, a prefix is
// always given: it may be another one after a restart.
func (s Sidecars) snapshots(scope volume.Scope) snapshot.Options {
	o := s.Snapshotter
	return snapshot.Options{
		NamePrefix: s.prefix(o.NamePrefix, "snapshot"), NameLength: o.NameLength, ExtraMetadata: o.ExtraMetadata,
		Node: o.Node, Rest: scope.Has(""), Topology: s.Identity == "" || o.Topology,
	}
}

// groups returns the same for groups of snapshots.
func (s Sidecars) groups(scope volume.Scope) snapshot.Options {
	o := s.Snapshotter
	return snapshot.Options{
		NamePrefix: s.prefix(o.GroupNamePrefix, "groupsnapshot"), NameLength: o.GroupNameLength,
		ExtraMetadata: o.ExtraMetadata, Node: o.Node, Rest: scope.Has(""), Topology: s.Identity == "" || o.Topology,
	}
}

// prefix returns the prefix of names; "" in a control plane, whose user cannot choose one.
func (s Sidecars) prefix(chosen, usual string) string {
	if s.Identity == "" {
		return ""
	}
	return cmp.Or(chosen, usual)
}
