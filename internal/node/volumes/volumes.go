package volumes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/queue"
	"volplane.dev/volplane/internal/volume"
)

// rounds bounds how often one turn looks at a volume anew: once to take away,
// once to bring, once to see that nothing is left to do, and one to spare.
const rounds = 4

// Volumes brings volumes to the Pods of a node, and takes them away.
type Volumes struct {
	*parts
	queue *queue.Queue[string]

	mu sync.Mutex
	// told is the last plan's reason for each volume.
	told map[string]volume.Because
	// unmounted are the paths of each volume that it is published at by the journal and
	// not by the mount table.
	unmounted map[string][]string
}

// New returns Volumes that nothing was done with yet.
func New(o Options) *Volumes {
	v := &Volumes{parts: &parts{Options: o}, told: map[string]volume.Because{}, unmounted: map[string][]string{}}
	v.republishes = &republishes{every: o.RepublishEvery, last: map[string]time.Time{}, wants: func(driver string) bool {
		return ptr.Deref(o.Node.Spec(driver).RequiresRepublish, false)
	}}
	v.queue = v.newQueue()
	return v
}

// Run works on the volumes that are added until ctx ends.
func (v *Volumes) Run(ctx context.Context) {
	v.queue.Run(ctx)
	_ = v.table.Close()
}

// Add has a volume looked at, by its key.
func (v *Volumes) Add(key string) {
	if key != "" {
		v.queue.Add(key)
	}
}

// AddAll asks for all volumes of a driver, or of every driver, to be looked
// at.
func (v *Volumes) AddAll(driver string) {
	for _, k := range v.keys() {
		if driver == "" || uses.DriverOf(k) == driver {
			v.queue.Add(k)
		}
	}
}

// AddPod has all volumes looked at that a Pod wants or has.
func (v *Volumes) AddPod(pod *corev1.Pod) {
	for _, u := range v.Finder.Of(pod) {
		v.Add(u.Key())
	}
	for _, r := range v.Journal.List() {
		if slices.ContainsFunc(r.Targets, func(t decide.Target) bool { return t.PodUID == string(pod.UID) }) {
			v.Add(r.Key())
		}
	}
}

// Forget drops what is only known for a Pod that is gone.
func (v *Volumes) Forget(podUID string) { v.tokens.forget(podUID) }

// Because returns what the last plan said of a volume, by its key.
func (v *Volumes) Because(key string) volume.Because {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.told[key]
}

// Unmounted says whether a volume, by its key, was last seen not to be mounted at a path
// where its journal has it published.
func (v *Volumes) Unmounted(key, path string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Contains(v.unmounted[key], path)
}

// reconcile brings one volume to where it should be: gather, decide, apply,
// until there is nothing left to do.
func (v *Volumes) reconcile(ctx context.Context, key string) error {
	for range rounds {
		f, err := gatherer{v.parts}.gather(ctx, key)
		if err != nil {
			return err
		}
		plan := decide.Volume(f.Facts)
		err = reporter{v.parts}.after(ctx, f, &plan, v.apply(ctx, f, plan))
		if plan.Because.Reason == volume.ReasonWaitForAttach {
			v.queue.AddAfter(key, v.LookEvery)
			err = errors.Join(err, v.awaitAttach(ctx, f, v.Because(key)))
		}
		v.tell(f, plan.Because)
		if wait := v.republishes.next(f.Driver); wait > 0 && len(f.Wanted) > 0 {
			v.queue.AddAfter(key, wait)
		}
		if err != nil || len(plan.Actions) == 0 {
			return err
		}
	}
	return nil
}

// apply carries the actions out in order, but for those that a failed one
// blocks.
func (v *Volumes) apply(ctx context.Context, f *facts, plan decide.Plan) []failure {
	d := &deed{parts: v.parts, f: f, rec: f.Record.Clone()}
	var failed []failure
	for _, action := range plan.Actions {
		if slices.ContainsFunc(failed, func(x failure) bool { return decide.Blocks(x.action, action) }) {
			continue
		}
		v.begun(f, decide.Begun(f.Facts, action.Verb))
		if err := d.do(ctx, action); err != nil {
			failed = append(failed, failure{action, err})
		}
	}
	if err := d.flush(); err != nil {
		verb := decide.Stage
		if len(f.Wanted) == 0 {
			verb = decide.Unstage
		}
		failed = append(failed, failure{decide.Action{Verb: verb}, err})
	}
	return failed
}

// tell keeps the reason for the Pods' conditions and has the Pods looked at.
func (v *Volumes) tell(f *facts, b volume.Because) {
	key, unmounted := volume.Key(f.Driver, f.Handle), v.stillUnmounted(f)
	v.mu.Lock()
	delete(v.told, key)
	delete(v.unmounted, key)
	if f.Record != nil || len(f.Wanted) > 0 {
		v.told[key] = b
	}
	if len(unmounted) > 0 {
		v.unmounted[key] = unmounted
	}
	v.mu.Unlock()
	for _, pod := range f.consumers {
		v.Consumers.Add(cluster.Key(pod))
	}
	if f.Record == nil {
		return
	}
	for _, t := range f.Record.Targets {
		v.Consumers.Add(t.PodNamespace + "/" + t.PodName)
	}
}

// stillUnmounted returns the paths that the volume was not mounted at before the plan was
// carried out, and is not now.
func (v *Volumes) stillUnmounted(f *facts) []string {
	var out []string
	for _, c := range f.Wanted {
		if !f.Unmounted(c.Path) || f.Block {
			continue
		}
		if mounted, err := v.table.Mounted(c.Path); err == nil && !mounted {
			out = append(out, c.Path)
		}
	}
	return out
}

// begun keeps the reason while a driver is asked, unless the last attempt has
// failed, which says more; what was refused without an attempt is over. A Pod whose
// condition says something older is told when the driver has had some time.
func (v *Volumes) begun(f *facts, b volume.Because) {
	key := volume.Key(f.Driver, f.Handle)
	if b.Reason == "" || v.queue.Failures(key) > 0 && strings.HasPrefix(string(v.Because(key).Reason), "Failed") {
		return
	}
	v.mu.Lock()
	v.told[key] = b
	v.mu.Unlock()
	for _, pod := range f.consumers {
		v.Consumers.Begun(pod)
	}
}

// Recorded returns the volumes of the journal as the Node names them.
func (v *Volumes) Recorded() []corev1.UniqueVolumeName {
	var out []corev1.UniqueVolumeName
	for _, r := range v.Journal.List() {
		if !r.Ephemeral {
			out = append(out, uses.UniqueName(r.Driver, r.Handle))
		}
	}
	return out
}

// keys returns every volume that is on this node or wanted on it.
func (v *Volumes) keys() []string {
	set := map[string]bool{}
	for _, r := range v.Journal.List() {
		set[r.Key()] = true
	}
	for _, p := range v.Pods.List() {
		for _, u := range v.Finder.Of(p) {
			set[u.Key()] = true
		}
	}
	for _, n := range v.Node.Marks.Names() {
		if driver, handle, ok := uses.Split(n); ok {
			set[volume.Key(driver, handle)] = true
		}
	}
	delete(set, "")
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	return out
}
