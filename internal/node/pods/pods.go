package pods

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node/health"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/node/volumes"
	"volplane.dev/volplane/internal/process/queue"
	"volplane.dev/volplane/internal/volume"
)

const (
	// podWorkers is how many Pods are written to the API at the same time.
	podWorkers = 16
	// conditionDelay is the age at which work in progress, and each step of it, is written into a Pod's condition. Most
	// mounts end earlier, and need one write instead of several.
	conditionDelay = time.Second
)

// Options are the settings and the collaborators of Pods.
type Options struct {
	// Node is the Node's name, Root the agent's root directory.
	Node, Root string
	Client     kubernetes.Interface
	Cache      *kube.Cache[*corev1.Pod]
	Journal    *journal.Journal
	Finder     *uses.Finder
	Events     *kube.Recorder
	Log        *slog.Logger
	// RetryMax bounds the back-off.
	RetryMax time.Duration
}

// Pods writes the conditions of a node's Pods.
type Pods struct {
	Options
	volumes *volumes.Volumes
	health  *health.Monitor
	queue   *queue.Queue[string]

	// dropsHealth says that the API server dropped the health of volumes when it was written last. Then it is written with
	// other changes only.
	dropsHealth atomic.Bool

	mu sync.Mutex
	// firstSeen is, by a Pod's UID, what its volumes wait for and since when.
	firstSeen map[string]progress
}

// progress is work that is under way, and since when.
type progress struct {
	reason volume.Reason
	since  time.Time
}

// New returns Pods that is not started.
func New(o Options) *Pods {
	p := &Pods{Options: o, firstSeen: map[string]progress{}}
	p.queue = queue.New(queue.Options[string]{
		Process: p.syncPod, Workers: podWorkers, Retry: queue.Backoff{Max: o.RetryMax}, Silent: apierrors.IsConflict,
		Noun: "consumer", Log: o.Log,
	})
	return p
}

// Add enqueues a Pod, by its key.
func (p *Pods) Add(key string) { p.queue.Add(key) }

// DriverCalled enqueues a Pod, by its key, after a delay: the call of a driver for one of its volumes is in flight.
func (p *Pods) DriverCalled(key string) { p.queue.AddAfter(key, conditionDelay) }

// Join connects the Pods with the parts that know their volumes, before Run.
func (p *Pods) Join(v *volumes.Volumes, h *health.Monitor) { p.volumes, p.health = v, h }

// Run processes the queue of Pods until ctx ends.
func (p *Pods) Run(ctx context.Context) { p.queue.Run(ctx) }

// Incomplete returns those of the Pods, by their keys, that do not have all of their volumes yet, and get them without
// a user.
func (p *Pods) Incomplete(keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		pod, ok := p.Cache.Get(key)
		if !ok || !uses.Alive(pod) {
			return true
		}
		paths, why, _ := p.podState(pod)
		return paths != nil || why.Next == volume.User()
	})
}

// syncPod writes a Pod's condition, or deletes a terminating Pod that has no volume left.
func (p *Pods) syncPod(ctx context.Context, key string) (queue.Result, error) {
	pod, ok := p.Cache.Get(key)
	if !ok {
		return queue.Result{}, nil
	}
	if pod.DeletionTimestamp != nil {
		return queue.Result{}, p.deletePod(ctx, pod)
	}
	if !uses.Alive(pod) {
		return queue.Result{}, nil
	}
	paths, b, own := p.podState(pod)
	if wait := p.delayLeft(pod, paths != nil, b.Reason); wait > 0 {
		return queue.Result{After: wait}, nil
	}
	changed, err := p.writeCondition(ctx, pod, paths, b)
	if changed && own && b.Next == volume.User() {
		p.Events.Warn(pod, b)
	}
	return queue.Result{}, err
}

// podState returns where the volumes of the Pod are mounted, or nil and why not all of them are. own means that the
// cause is the Pod or its claims, for which no other event is recorded.
func (p *Pods) podState(pod *corev1.Pod) (paths map[string]string, why volume.Because, own bool) {
	refused := ""
	host, _, err := p.Finder.HostPath(pod)
	if err != nil {
		refused = err.Error()
	}
	var places []decide.Place
	for _, u := range p.Finder.Of(pod) {
		place := decide.Place{Name: u.Name, Because: u.Why}
		own = own || u.PV == nil
		if u.PV != nil {
			target := p.target(pod, u)
			place.Path = uses.PlacePath(p.Root, string(pod.UID), u.PV.Name, uses.IsBlock(u.PV))
			place.Served = p.Journal.Get(u.Key()).Target(target).Serves(host) && !p.volumes.Unseen(u.Key(), target)
			place.Because = p.volumes.Because(u.Key(), target)
		}
		places = append(places, place)
	}
	paths, why = decide.Pod(refused, places)
	return paths, why, own || refused != ""
}

// target returns the path at which a volume is published to a Pod.
func (p *Pods) target(pod *corev1.Pod, u uses.Use) string {
	return uses.TargetPath(p.Root, string(pod.UID), u.PV.Name, uses.IsBlock(u.PV))
}

// delayLeft returns how long a Pod's first condition, or the next step of the work in progress, is held back, because
// it may be obsolete in a moment.
func (p *Pods) delayLeft(pod *corev1.Pod, ready bool, r volume.Reason) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	uid := string(pod.UID)
	if ready || !inProgress(r) {
		delete(p.firstSeen, uid)
		return 0
	}
	told := cluster.PodCondition(pod, volume.ConditionVolumesMounted)
	if told != nil && (!inProgress(volume.Reason(told.Reason)) || told.Reason == string(r)) {
		return 0
	}
	first, ok := p.firstSeen[uid]
	if !ok || told != nil && first.reason != r {
		first = progress{r, time.Now()}
		p.firstSeen[uid] = first
	}
	return conditionDelay - time.Since(first.since)
}

func inProgress(r volume.Reason) bool {
	return r == volume.ReasonMounting || r == volume.ReasonWaitForAttach || r == volume.ReasonWaitForBind ||
		r == volume.ReasonUnmounting
}

// End deletes a Pod whose use of a volume a user has ended by unmounting its path. The rest is cleaned up as for any
// deleted Pod.
func (p *Pods) End(ctx context.Context, pod *corev1.Pod) error {
	p.Log.Info("the path of a Pod was unmounted manually, so the Pod is deleted", "pod", cluster.Key(pod),
		"path", pod.Annotations[volume.AnnMountAt])
	return p.delete(ctx, pod, metav1.DeleteOptions{})
}

// deletePod finally deletes a terminating Pod when the journal has no target of it. The API server keeps it until then.
func (p *Pods) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if len(p.Journal.Of(string(pod.UID))) > 0 {
		return nil
	}
	p.mu.Lock()
	delete(p.firstSeen, string(pod.UID))
	p.mu.Unlock()
	p.volumes.Forget(string(pod.UID))
	return p.delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}

func (p *Pods) delete(ctx context.Context, pod *corev1.Pod, o metav1.DeleteOptions) error {
	o.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	err := p.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, o)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", cluster.Key(pod), err)
	}
	return nil
}
