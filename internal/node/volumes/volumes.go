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
	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount/selinux"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/process/queue"
	"volplane.dev/volplane/internal/volume"
)

// maxRounds bounds how often one call of reconcile plans: once to unmount, once to mount, once to
// see that nothing is left to do, and one in reserve.
const maxRounds = 4

// Volumes mounts and unmounts the volumes of a node's Pods.
type Volumes struct {
	*shared
	queue *queue.Queue[string]

	mu sync.Mutex
	// last is the outcome of the last reconcile of each volume, by its key.
	last map[string]outcome
}

// outcome is what a reconcile of a volume has found out.
type outcome struct {
	// because is the plan's reason, and own are those of Pods that wait for something of their own, by path.
	because volume.Because
	own     map[string]volume.Because
	// called is the start of the driver call in flight; zero without one.
	called time.Time
	// unseen are the targets at which Pods do not see the volume although the journal has it published.
	unseen []string
	// differs are the paths at which the mount table differed from the journal.
	differs []string
}

// New returns Volumes that Run has not processed yet.
func New(o Options) *Volumes {
	if o.FileLabel == nil {
		o.FileLabel = selinux.FileLabel
	}
	v := &Volumes{shared: &shared{Options: o}, last: map[string]outcome{}}
	v.republishes = &republishes{every: o.RepublishEvery, last: map[string]time.Time{}}
	v.republishes.required = func(driver string) bool {
		return ptr.Deref(o.Node.Spec(driver).RequiresRepublish, false)
	}
	v.queue = v.newQueue()
	return v
}

// Run processes the queue of volumes until ctx ends.
func (v *Volumes) Run(ctx context.Context) {
	v.queue.Run(ctx)
	_ = v.table.Close()
}

// Add enqueues a volume by its key; the empty key is ignored.
func (v *Volumes) Add(key string) {
	if key != "" {
		v.queue.Add(key)
	}
}

// AddAll enqueues all volumes of a driver, or of every driver if its name is empty.
func (v *Volumes) AddAll(driver string) {
	for _, k := range v.allKeys() {
		if driver == "" || uses.DriverOf(k) == driver {
			v.queue.Add(k)
		}
	}
}

// AddPod enqueues all volumes that a Pod wants or has.
func (v *Volumes) AddPod(pod *corev1.Pod) {
	for _, u := range v.Finder.Of(pod) {
		v.Add(u.Key())
	}
	for _, r := range v.Journal.Of(string(pod.UID)) {
		v.Add(r.Key())
	}
}

// Forget deletes the tokens of a Pod that is gone.
func (v *Volumes) Forget(podUID string) { v.tokens.forget(podUID) }

// outcomeOf returns the outcome of the last reconcile of a volume, by its key.
func (v *Volumes) outcomeOf(key string) outcome {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last[key]
}

// Because returns the last plan's reason for a volume, by its key, as it applies to the Pod that wants it at a path.
func (v *Volumes) Because(key, path string) volume.Because {
	o := v.outcomeOf(key)
	if own, ok := o.own[path]; ok {
		return own
	}
	return o.because
}

// CalledAt returns the start of the driver's call that is in flight for a volume, by its key; zero if
// there is none.
func (v *Volumes) CalledAt(key string) time.Time { return v.outcomeOf(key).called }

// Unseen says whether the Pod to which a volume, by its key, is published at a path did not see it there at the last
// check.
func (v *Volumes) Unseen(key, path string) bool {
	return slices.Contains(v.outcomeOf(key).unseen, path)
}

// reconcile gathers, decides and applies until nothing is left to do for a volume.
func (v *Volumes) reconcile(ctx context.Context, key string) error {
	for range maxRounds {
		f, err := gatherer{v.shared}.gather(ctx, key)
		if err != nil {
			return err
		}
		plan := decide.Volume(f.Facts)
		failed := v.apply(ctx, f, plan)
		err = reporter{shared: v.shared, plan: &plan}.after(ctx, f, failed, v.try(key))
		if plan.Because.Reason == volume.ReasonWaitForAttach {
			v.queue.AddAfter(key, v.PollEvery)
			err = errors.Join(err, v.checkAttachError(ctx, f, v.outcomeOf(key).because))
		}
		v.setOutcome(f, plan)
		if wait := v.republishes.next(f.Driver); wait > 0 && len(f.Wanted) > 0 {
			v.queue.AddAfter(key, wait)
		}
		if err != nil || len(plan.Actions) == 0 {
			return err
		}
	}
	return nil
}

// try returns the number and the time of the next try after a failure now.
func (v *Volumes) try(key string) retry.Try {
	number, pause := v.queue.Attempt(key)
	return retry.Try{Number: number, Next: time.Now().Add(pause)}
}

// apply carries out the actions in order, except those that a failed action blocks.
func (v *Volumes) apply(ctx context.Context, f *facts, plan decide.Plan) []failure {
	d := &applier{shared: v.shared, f: f, rec: f.Record.Clone(), label: plan.Label}
	if d.rec != nil && len(plan.Actions) > 0 {
		d.rec.Lost = f.Lost()
	}
	var failed []failure
	for _, action := range plan.Actions {
		if slices.ContainsFunc(failed, func(x failure) bool { return decide.Blocks(x.action, action) }) {
			continue
		}
		v.setCalled(f, f.NotBack(action, decide.CallInFlight(f.Facts, action.Verb)))
		if err := d.do(csi.About(ctx, f.subject(action)), action); err != nil {
			failed = append(failed, failure{action, err})
		}
	}
	d.rec.Regain(f.Wanted)
	if err := d.flush(); err != nil {
		verb := decide.Stage
		if len(f.Wanted) == 0 {
			verb = decide.Unstage
		}
		failed = append(failed, failure{decide.Action{Verb: verb}, err})
	}
	return failed
}

// setOutcome stores the outcome for the Pods' conditions and enqueues these Pods.
func (v *Volumes) setOutcome(f *facts, plan decide.Plan) {
	key := volume.Key(f.Driver, f.Handle)
	now := outcome{because: plan.Because, own: plan.Own, unseen: v.unseenNow(f), differs: f.differs}
	v.mu.Lock()
	if v.last[key] = now; f.Record == nil && len(f.Wanted) == 0 {
		delete(v.last, key)
	}
	v.mu.Unlock()
	for _, c := range f.consumers {
		v.Consumers.Add(cluster.Key(c.pod))
	}
	if f.Record == nil {
		return
	}
	for _, t := range f.Record.Targets {
		v.Consumers.Add(t.PodNamespace + "/" + t.PodName)
	}
}

// unseenNow returns the targets whose Pods do not see the volume: it was not mounted there before the
// plan was carried out and is not now, or another filesystem or a dead one is mounted there.
func (v *Volumes) unseenNow(f *facts) []string {
	var out []string
	for _, c := range f.Wanted {
		unseen := f.Unseen(c) != ""
		if f.Unmounted(c.Path) && !f.Block {
			mounted, err := v.table.Mounted(c.Path)
			unseen = unseen || err == nil && !mounted
		}
		if unseen {
			out = append(out, c.Path)
		}
	}
	return out
}

// setCalled stores the reason while a call of the driver is in flight. If the last attempt failed, its more specific
// reason stays. A Pod's condition is written only if the call takes longer than usual.
func (v *Volumes) setCalled(f *facts, b volume.Because) {
	key := volume.Key(f.Driver, f.Handle)
	last := v.outcomeOf(key)
	if b.Reason == "" || v.queue.Failures(key) > 0 && (ofFailure(last.because.Reason) || len(last.own) > 0) {
		return
	}
	v.mu.Lock()
	now := v.last[key]
	now.because, now.called = b, time.Now()
	v.last[key] = now
	v.mu.Unlock()
	for _, c := range f.consumers {
		v.Consumers.DriverCalled(cluster.Key(c.pod))
	}
}

// setBusy stores that a volume waits because its driver is busy with others, and enqueues the Pods that want it. The
// reason of a failed attempt says more and stays.
func (v *Volumes) setBusy(key string) {
	v.mu.Lock()
	if now := v.last[key]; !ofFailure(now.because.Reason) {
		now.because = decide.Busy(uses.DriverOf(key), v.Node.Name)
		v.last[key] = now
	}
	v.mu.Unlock()
	for _, p := range v.Pods.List() {
		if slices.ContainsFunc(v.Finder.Of(p), func(u uses.Use) bool { return u.Key() == key }) {
			v.Consumers.Add(cluster.Key(p))
		}
	}
}

// ofFailure says whether a reason is that of a step that failed.
func ofFailure(r volume.Reason) bool {
	return strings.HasPrefix(string(r), "Failed") || r == volume.ReasonMountBroken
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

// allKeys returns the keys of all volumes that this node has or wants.
func (v *Volumes) allKeys() []string {
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

// DriverLimit is how many volumes of one driver are processed at the same time, not counting those whose calls hang.
// The queue limits these as well, so a driver that hangs holds a limited number of goroutines and nothing else.
const DriverLimit = 16

// busyAfter is how long a volume waits for a place before its Pods report it.
const busyAfter = 5 * time.Second

// newQueue returns the queue of volumes. A volume is processed as soon as its driver has a free place.
func (v *Volumes) newQueue() *queue.Queue[string] {
	return queue.New(queue.Options[string]{
		Process: v.process,
		Lanes:   queue.Limit{Places: DriverLimit, Undivided: true},
		Retry:   queue.Backoff{Min: v.RetryMin, Max: v.RetryMax},
		Poll:    queue.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second},
		Held:    func(err error) bool { return errors.Is(err, kube.ErrHeld) },
		Noun:    "volume", Log: v.Log, Silent: csi.IsAnswer,
	})
}

// process reconciles a volume if its driver has a free place; otherwise the queue adds it again.
func (v *Volumes) process(ctx context.Context, key string) (queue.Result, error) {
	switch ok, waited := v.queue.Enter(key, queue.Lane{Driver: uses.DriverOf(key)}); {
	case ok:
	case waited < busyAfter:
		return queue.Result{After: busyAfter - waited}, nil
	default:
		v.setBusy(key)
		return queue.Result{}, nil
	}
	err := v.reconcile(ctx, key)
	if errors.Is(err, errNotYet) {
		v.Log.Debug("volume waits", "volume", key, "for", err)
		return queue.Result{Poll: true}, nil
	}
	return queue.Result{}, err
}
