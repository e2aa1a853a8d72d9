package provisioner

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Logs says where a process has its intents.
type Logs struct {
	// Own is the place of the process's own log.
	Own kube.LogPlace
	// OfDriver returns the place of the log of a driver that the process calls for more than the volumes of one node, in
	// the namespace of Own; nil means that all intents are in Own.
	OfDriver func(driver string) kube.LogPlace
}

// Standalone returns the logs of a standalone control plane. A provisioner beside a driver has one log.
func Standalone() Logs {
	return Logs{Own: kube.LogPlace{Namespace: volume.NamespaceSystem, Name: "volplane-intents"}, OfDriver: ofDriver}
}

// OnHost returns the logs of the controllers of a host.
func OnHost(node string) Logs {
	return Logs{
		Own:      kube.LogPlace{Namespace: volume.NamespaceSystem, Name: identity.HostIntents(node)},
		OfDriver: ofDriver,
	}
}

func ofDriver(driver string) kube.LogPlace {
	return kube.LogPlace{Namespace: volume.NamespaceSystem, Name: identity.DriverIntents(driver)}
}

// access returns the rights that writing the logs needs. The names of drivers' logs are not known before.
func (l Logs) access() []kube.Access {
	rights := l.Own.Access()
	if l.OfDriver != nil {
		for i := range rights {
			rights[i].Names = nil
		}
	}
	return rights
}

// intents are the intent logs of a process. A driver that it calls for more than the volumes of one node has a log of
// its own, which goes with the driver's leases: whoever calls the driver next finds what is unresolved. All other
// intents are in the log of the process.
type intents struct {
	client  kubernetes.Interface
	drivers *csi.Set
	// of is Logs.OfDriver.
	of func(driver string) kube.LogPlace

	mu sync.Mutex
	// own is the log of the process.
	own *kube.IntentLog
	// ofDrivers holds the logs of drivers, by name.
	ofDrivers map[string]*driverLog
}

// driverLog is the log of one driver.
type driverLog struct {
	*kube.IntentLog
	// held says that no other process writes the log. What it has had is known longer, so that somebody tells of it.
	held bool
}

func newIntents(client kubernetes.Interface, o Options) *intents {
	l := &intents{
		client: client, drivers: o.Drivers, of: o.Intents.OfDriver,
		own:       kube.NewIntentLog(client, o.Intents.Own),
		ofDrivers: map[string]*driverLog{},
	}
	for _, name := range o.Drivers.Names() {
		l.driverChanged(name)
	}
	return l
}

// driverChanged takes up the log of a driver that the process calls now, or leaves it to others.
func (l *intents) driverChanged(name string) {
	d, called := l.drivers.Get(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	known, held := l.ofDrivers[name], l.of != nil && called && d.Scope.Has("")
	switch {
	case known == nil && held:
		l.ofDrivers[name] = &driverLog{kube.NewIntentLog(l.client, l.of(name)), true}
	case known != nil && held && !known.held:
		known.Expire()
		known.held = true
	case known != nil:
		known.held = held
	}
}

// all returns the logs that this process may write, and with known those too that it has written before.
func (l *intents) all(known bool) []*kube.IntentLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []*kube.IntentLog{l.own}
	for _, d := range l.ofDrivers {
		if d.held || known {
			out = append(out, d.IntentLog)
		}
	}
	return out
}

// logOf returns the log for intents about a driver, which the process must call.
func (l *intents) logOf(driver string) *kube.IntentLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.ofDrivers[driver]; d != nil && d.held {
		return d.IntentLog
	}
	return l.own
}

// knows says whether the intents about a driver are known: no other process writes them.
func (l *intents) knows(driver string) bool {
	d, called := l.drivers.Get(driver)
	return l.of == nil || called && !d.Scope.Has("") || l.logOf(driver) != l.own
}

// load reads the logs that were not read, and returns the keys of their intents; see kube.IntentLog.
func (l *intents) load(ctx context.Context) (open []string, err error) {
	for _, log := range l.all(false) {
		some, err := log.Load(ctx)
		open = append(open, some...)
		if err != nil {
			return open, err
		}
	}
	return open, nil
}

// get returns the unresolved intent of a claim.
func (l *intents) get(uid string) (value string, ok bool) {
	for _, log := range l.all(true) {
		if value, ok = log.Get(uid); ok {
			break
		}
	}
	return value, ok
}

// open returns the unresolved intents. Invalid ones are left out: they name no source.
func (l *intents) open() []*provision.Intent {
	var out []*provision.Intent
	for _, log := range l.all(true) {
		for _, text := range log.Open() {
			if in, err := provision.ParseIntent(text); err == nil {
				out = append(out, in)
			}
		}
	}
	return out
}

// put writes an intent. An intent of the same claim that is in another log goes first, so that it cannot come back
// after a crash.
func (l *intents) put(ctx context.Context, in *provision.Intent) error {
	log, uid := l.logOf(in.Driver), string(in.Claim.UID)
	for _, other := range l.all(false) {
		if other != log {
			if err := sweep(ctx, other, uid); err != nil {
				return fmt.Errorf("an earlier request for the claim: %w", err)
			}
		}
	}
	return log.Put(ctx, uid, in.String())
}

// forget makes sure that no log has an intent of a claim any more.
func (l *intents) forget(ctx context.Context, uid string) error {
	for _, log := range l.all(false) {
		if err := sweep(ctx, log, uid); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes the resolved intent of a claim from a log.
func sweep(ctx context.Context, log *kube.IntentLog, uid string) error {
	if !log.Holds(uid) {
		return nil
	}
	if _, open := log.Get(uid); open {
		return errOpen
	}
	if err := log.Sweep(ctx); err != nil {
		return err
	}
	if log.Holds(uid) {
		return errOpen // another worker is writing that part of the log
	}
	return nil
}

// done marks an intent as resolved.
func (l *intents) done(uid string) {
	for _, log := range l.all(true) {
		log.Done(uid)
	}
}

// sweep removes resolved intents from the server.
func (l *intents) sweep(ctx context.Context) error {
	for _, log := range l.all(false) {
		if err := log.Sweep(ctx); err != nil {
			return err
		}
	}
	return nil
}
