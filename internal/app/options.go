package app

import (
	"log/slog"
	"time"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/gather/world"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/volume"
)

// ControlPlaneOptions configure the controllers of a process.
type ControlPlaneOptions struct {
	// ConfigFor returns the client configuration of ReaderRole or of a role in
	// Declarations.
	ConfigFor func(role string) (*rest.Config, error)
	// Roles are the names of the controllers to run; empty means all but those that run on demand.
	Roles []string
	// Drivers are the CSI drivers that this process reaches; nil if none of the controllers calls any.
	Drivers *csi.Set
	// Sidecars are what the user has chosen for the controllers of a driver.
	Sidecars
	// DisableForceDetachOnTimeout says that a volume is not detached by force after
	// its node has not been ready for six minutes.
	DisableForceDetachOnTimeout bool
	// MaxUnmount is that of attachdetach.Options.
	MaxUnmount time.Duration
	// Scope says which volumes belong to this process whose drivers it does not reach.
	Scope volume.Scope
	// Intents says where the provisioner's intents are; the zero value means the logs of a standalone control plane.
	Intents provisioner.Logs
	// Forgone are the resources that the process may not read and does without.
	Forgone []string
	// Flex presents FlexVolumes as volumes of the CSI drivers that a bridge serves.
	// It is for a control plane whose FlexVolumes no other program serves.
	Flex bool
	// Metrics counts what the controllers do, or is nil.
	Metrics *observe.Registry
	// World, unless it is nil, is filled with what the process knows of the cluster, and Metrics shows what waits in it,
	// and why.
	World *world.World
	// Plane is what the controllers share with other parts of the process; nil if they are alone.
	Plane *Plane
	// Log is the log of the program.
	Log *slog.Logger

	// requests are what the binder asks of the provisioner.
	requests *controller.Requests
}

// runs says whether a controller is to run.
func (o ControlPlaneOptions) runs(role string) bool {
	if role == groupsnapshotter.BindingDeclaration().Name && o.SnapshotController.WithoutGroups {
		return false
	}
	return len(o.Roles) == 0 && !onDemand(role) || runs(o.Roles, role)
}

// near returns what says of a driver whether this process attaches its volumes; nil if it attaches none.
func (o ControlPlaneOptions) near() func(driver string) bool {
	if !o.runs(attacher.Declaration().Name) {
		return nil
	}
	return func(driver string) bool {
		d, ok := o.Drivers.Get(driver)
		return ok && d.Controller.PublishUnpublish
	}
}
