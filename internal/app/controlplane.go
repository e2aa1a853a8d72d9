package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/parts"
)

// ControlPlaneOptions says what the controllers work with.
type ControlPlaneOptions struct {
	// ConfigFor returns the way to the API server for a role of Declarations
	// or ReaderRole.
	ConfigFor func(role string) (*rest.Config, error)
	// Roles are the names of the controllers that run; empty is all of them.
	Roles []string
	// Drivers are the CSI drivers that this process reaches.
	Drivers *csi.Set
	// CapacityPoll is the pause after which drivers are asked again how much
	// room they have; 0 is a minute.
	CapacityPoll time.Duration
	// CapacityForImmediate has them asked about classes whose claims do not
	// wait for a node, too.
	CapacityForImmediate bool
	// ReconcileSync is the pause after which drivers are asked again what they
	// have attached; 0 is a minute.
	ReconcileSync time.Duration
	// DummyAttacher, when set, is the name of an attacher without a driver,
	// whose attachments are marked attached.
	DummyAttacher string
	// DisableForceDetachOnTimeout keeps volumes from being detached by force
	// only because their node has not been ready for long.
	DisableForceDetachOnTimeout bool
	// Intents is where the provisioner keeps what it has begun; none is that of
	// a whole control plane.
	Intents kube.LogPlace
	// Flex has volumes of FlexVolume drivers taken for those of the CSI drivers
	// that a bridge makes of them. It is for a control plane whose volumes nobody
	// else looks after.
	Flex bool
	// Log receives what is worth telling.
	Log *slog.Logger
}

func (o ControlPlaneOptions) runs(role string) bool {
	return len(o.Roles) == 0 || slices.Contains(o.Roles, role)
}

// declarations returns those of the controllers that run.
func (o ControlPlaneOptions) declarations() []controller.Declaration {
	return slices.DeleteFunc(declarations(o.Intents), func(d controller.Declaration) bool { return !o.runs(d.Name) })
}

// ControlPlane runs controllers until ctx ends. It calls ready once, when the
// caches are full and every controller works.
func ControlPlane(ctx context.Context, o ControlPlaneOptions, ready func()) error {
	if o.Intents == (kube.LogPlace{}) {
		o.Intents = provisioner.Intents()
	}
	flow := kube.NewFlow()
	reader, err := clientFor(o, ReaderRole, inputs(o.declarations()), flow)
	if err != nil {
		return err
	}
	caches := kube.NewCaches(reader)
	var all []parts.Part
	common := shared{
		drivers: o.Drivers, requests: controller.NewRequests(), protects: o.runs(protection.Declaration().Name),
		capacity:     capacity.Options{Drivers: o.Drivers, Immediate: o.CapacityForImmediate, Poll: o.CapacityPoll},
		attacher:     attacher.Options{Drivers: o.Drivers, ReconcileSync: o.ReconcileSync, Dummy: o.DummyAttacher},
		attachDetach: attachdetach.Options{Now: time.Now, DisableForceDetachOnTimeout: o.DisableForceDetachOnTimeout},
	}
	if o.runs(attacher.Declaration().Name) {
		common.attachDetach.Near = func(name string) bool {
			d, ok := o.Drivers.Get(name)
			return ok && d.Controller.PublishUnpublish
		}
	}
	for _, m := range members(o.Intents) {
		if !o.runs(m.Name) {
			continue
		}
		client, err := clientFor(o, m.Name, m.Rights(), flow)
		if err != nil {
			return err
		}
		c := m.build(controller.Env{
			Client: client, Caches: caches,
			Events: kube.NewRecorder(ctx, client, m.Name), Log: o.Log.With("controller", m.Name),
		}, common)
		all = append(all, parts.Part{Name: m.Name, Run: c.Run})
	}
	if err := caches.Start(ctx); err != nil {
		return ended(ctx, err)
	}
	go o.Drivers.Follow(ctx)
	ready()
	return parts.Run(ctx, o.Log, all)
}

// clientFor returns the client of one role: no client-side rate limit (the
// server's own flow control is obeyed), and nothing but what is declared.
func clientFor(o ControlPlaneOptions, role string, rights []kube.Access, flow kube.Flow) (kubernetes.Interface, error) {
	config, err := o.ConfigFor(role)
	if err != nil {
		return nil, fmt.Errorf("identity of %s: %w", role, err)
	}
	config = kube.Restrict(config, role, rights)
	config.QPS = -1
	flow.Limit(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", role, err)
	}
	if o.Flex {
		return kube.Translated(client, flex.Translation()), nil
	}
	return client, nil
}

// ended returns no error when it only says that a role was asked to end.
func ended(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}
