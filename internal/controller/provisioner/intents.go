package provisioner

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	// Inherited are the places of logs that other processes have written, and that this one resolves now.
	Inherited []kube.LogPlace
	// OfDriver returns the place of the log of a driver that is not node-local, in the namespace of Own; nil means that
	// all intents are in Own.
	OfDriver func(driver string) kube.LogPlace
	// AnyName says that the name of Own is not known yet, so that the rights are those on every name.
	AnyName bool
	// ReadsAll says that the process may read the logs of all others in the namespace of Own: it speaks for drivers that
	// nobody calls.
	ReadsAll bool
}

// Standalone returns the logs of a standalone control plane. A provisioner beside a driver has one log.
func Standalone() Logs {
	return Logs{
		Own:      kube.LogPlace{Namespace: volume.NamespaceSystem, Name: "volplane-intents"},
		OfDriver: ofDriver, ReadsAll: true,
	}
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
	if l.OfDriver != nil || l.AnyName {
		for i := range rights {
			rights[i].Names = nil
		}
	}
	return rights
}

// intents are the intent logs of a process. A driver that is not node-local has a log of its own, which goes with the
// driver's leases: the process that calls the driver next finds what is unresolved. All other intents are in the log of
// the process: another host would create the volume again, in its own pool. Earlier versions have written those about
// volumes that belong to no node to the log of the driver.
type intents struct {
	Logs

	client  kubernetes.Interface
	drivers *csi.Set

	mu sync.Mutex
	// own is the log of the process.
	own *kube.IntentLog
	// inherited are those of Logs.Inherited.
	inherited []*kube.IntentLog
	// ofDrivers holds the logs of drivers, by name.
	ofDrivers map[string]*driverLog
	// others holds, by claim, what the logs of others had when they were read; nil before. It is told, and never acted on.
	// An invalid intent is nil.
	others map[string]*provision.Intent
}

// driverLog is the log of one driver.
type driverLog struct {
	*kube.IntentLog
	// held says that this process calls the driver, so that it writes the log and no other process does. When that ends,
	// the log stays here to be read: what is open in it is still explained to users.
	held bool
}

func newIntents(client kubernetes.Interface, o Options) *intents {
	l := &intents{
		Logs: o.Intents, client: client, drivers: o.Drivers,
		own:       kube.NewIntentLog(client, o.Intents.Own),
		ofDrivers: map[string]*driverLog{},
	}
	for _, place := range o.Intents.Inherited {
		l.inherited = append(l.inherited, kube.NewIntentLog(client, place))
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
	known, held := l.ofDrivers[name], l.OfDriver != nil && called && d.Scope.Has("")
	switch {
	case known == nil && held:
		l.ofDrivers[name] = &driverLog{kube.NewIntentLog(l.client, l.OfDriver(name)), true}
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
	out := append([]*kube.IntentLog{l.own}, l.inherited...)
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
	d, called := l.drivers.Get(driver)
	if log := l.ofDrivers[driver]; log != nil && log.held && called && d.Scope.Node == "" {
		return log.IntentLog
	}
	return l.own
}

// knows says whether no other process writes intents about the volumes of a driver for a node.
func (l *intents) knows(driver, node string) bool {
	_, called := l.drivers.For(driver, node)
	return l.OfDriver == nil || called
}

// load reads the logs that were not read, and returns the keys of their intents; see kube.IntentLog. The logs of others
// are read once.
func (l *intents) load(ctx context.Context) (open []string, err error) {
	for _, log := range l.all(false) {
		some, err := log.Load(ctx)
		open = append(open, some...)
		if err != nil {
			return open, err
		}
	}
	l.mu.Lock()
	read := !l.ReadsAll || l.others != nil
	l.mu.Unlock()
	if read {
		return open, nil
	}
	if err := l.readOthers(ctx); err != nil {
		return open, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.AppendSeq(open, maps.Keys(l.others)), nil
}

// readOthers reads the logs that the process does not write.
func (l *intents) readOthers(ctx context.Context) error {
	logs, err := kube.ReadIntentLogs(ctx, l.client, l.Own.Namespace)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(logs, l.Own.Name)
	for _, place := range l.Inherited {
		delete(logs, place.Name)
	}
	for name, d := range l.ofDrivers {
		if d.held {
			delete(logs, l.OfDriver(name).Name)
		}
	}
	l.others = map[string]*provision.Intent{}
	for _, log := range logs {
		for uid, text := range log {
			l.others[uid], _ = provision.ParseIntent(text)
		}
	}
	return nil
}

// uncalled returns the intent of a claim about a driver that the process does not call, as it was when the logs of
// others were read, or nil.
func (l *intents) uncalled(uid string) *provision.Intent {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.others[uid]
	if in == nil {
		return nil
	}
	if _, called := l.drivers.Get(in.Driver); called {
		return nil
	}
	return in
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

// forget makes sure that no log of the process has an intent of a claim any more; if others may know, that none has.
func (l *intents) forget(ctx context.Context, uid string, others bool) error {
	for _, log := range l.all(false) {
		if err := sweep(ctx, log, uid); err != nil {
			return err
		}
	}
	if !others {
		return nil
	}
	if err := l.readOthers(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.others[uid]; has {
		return errOpen
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
