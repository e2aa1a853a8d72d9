package protection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/protect"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindClaim  = "claim"
	kindVolume = "volume"
	kindClass  = "class"
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "protection",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "pods"),
			kube.Read("storage.k8s.io", "volumeattributesclasses")...),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims", "update").Only(kube.Finalizer(volume.FinalizerClaimProtection)),
			kube.Write("", "persistentvolumes", "update").Shared(
				"there while a claim is bound; the provisioner takes it from a volume that its driver has deleted",
				kube.Finalizer(volume.FinalizerVolumeProtection)),
			kube.Write("", "persistentvolumeclaims/status", "patch").
				Shared("of bound claims; the binder writes it when the claim becomes Bound",
					kube.Condition(corev1.PersistentVolumeClaimUnused)),
			kube.Write("storage.k8s.io", "volumeattributesclasses", "update").
				Only(kube.Finalizer(volume.FinalizerAttributesProtection)),
			kube.Write("", "pods", "list"),
		},
	}
}

type protection struct {
	controller.Env
	*controller.Controller
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes kube.Writer[*corev1.PersistentVolume]
	classes kube.Writer[*storagev1.VolumeAttributesClass]
	pods    *kube.Cache[*corev1.Pod]
	batches batches
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env) *controller.Controller {
	p := &protection{
		Env: env, Controller: &controller.Controller{Declaration: Declaration(), Workers: 100, Log: env.Log},
		claims: env.Caches.WriteClaims(env.Client), volumes: env.Caches.WriteVolumes(env.Client), pods: env.Caches.Pods(),
		classes: env.Caches.WriteVolumeAttributesClasses(env.Client),
	}
	p.Controller.Reconcile = p.reconcile
	p.watchClasses()
	p.claims.Watch(func(_, c *corev1.PersistentVolumeClaim) {
		if c != nil && (c.DeletionTimestamp != nil || c.Status.Phase == corev1.ClaimBound ||
			!slices.Contains(c.Finalizers, volume.FinalizerClaimProtection)) {
			p.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
		}
	})
	p.volumes.Watch(func(_, v *corev1.PersistentVolume) {
		if v != nil && (v.DeletionTimestamp != nil || !slices.Contains(v.Finalizers, volume.FinalizerVolumeProtection)) {
			p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
	})
	p.pods.Watch(func(before, after *corev1.Pod) {
		if before == nil || after == nil || cluster.Finished(before) != cluster.Finished(after) {
			pod := cmp.Or(after, before)
			for _, name := range cluster.ClaimNames(pod) {
				p.Add(controller.Key{Kind: kindClaim, Namespace: pod.Namespace, Name: name})
			}
		}
	})
	return p.Controller
}

func (p *protection) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindClass:
		return controller.Result{}, p.applyClass(ctx, key.Name)
	case kindVolume:
		v, ok := p.volumes.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		return controller.Result{}, p.applyVolume(ctx, v)
	}
	claim, ok := p.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	return controller.Result{}, p.applyClaim(ctx, claim)
}

func (p *protection) applyClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	users := p.pods.By(cluster.PodsByClaim, cluster.Key(claim))
	next, _ := protect.Claim(claim, users)
	if next == nil {
		return p.tellUnused(ctx, claim, protect.Unused(claim, users, metav1.Now()))
	}
	if claim.DeletionTimestamp != nil {
		var err error
		if users, err = p.users(ctx, claim); err != nil {
			return err
		}
		if next, _ = protect.Claim(claim, users); next == nil {
			return nil
		}
	}
	_, err := p.claims.Update(ctx, next)
	return err
}

// tellUnused writes the condition Unused, if needed, and nothing else, so it does not conflict with the other writers
// of the status.
func (p *protection) tellUnused(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, unused *corev1.PersistentVolumeClaimCondition,
) error {
	if unused == nil {
		return nil
	}
	_, err := p.claims.Patch(ctx, claim, types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"conditions": []*corev1.PersistentVolumeClaimCondition{unused}},
	}, "status")
	return err
}

// users returns the Pods that name a claim, as the API server has them: the cache may not show a new
// Pod yet. The API server answers slowly while no Pods change, and reads all Pods of the namespace, so
// one list serves all its claims.
func (p *protection) users(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]*corev1.Pod, error) {
	q := &query{claim: claim.Name}
	if err := p.batches.of(claim.Namespace, p.listPods).Do(ctx, q); err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", claim.Namespace, err)
	}
	return q.users, nil
}

// listPods answers queries about the claims of a namespace, and returns how many Pods it has read.
func (p *protection) listPods(ctx context.Context, namespace string, queries []*query) (int, error) {
	list, err := p.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	users := map[string][]*corev1.Pod{}
	for i := range list.Items {
		for _, name := range cluster.ClaimNames(&list.Items[i]) {
			users[name] = append(users[name], &list.Items[i])
		}
	}
	for _, q := range queries {
		q.users = users[q.claim]
	}
	return len(list.Items), nil
}

func (p *protection) applyVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	next, _ := protect.Volume(v)
	if next == nil {
		return nil
	}
	_, err := p.volumes.Update(ctx, next)
	return err
}

// query finds the Pods that use a claim.
type query struct {
	// claim is the name of the claim.
	claim string
	// users is the answer.
	users []*corev1.Pod
}

// After a list of the Pods of a namespace, the next one waits restPerPod for each of them, but at most longestRest, and
// answers the queries of all claims that are deleted in the meantime. Otherwise many claims that are deleted one after
// the other would have all Pods read as often.
const restPerPod, longestRest = 500 * time.Microsecond, time.Second

// batches holds the batch of queries of each namespace: one list of its Pods answers all of them.
type batches struct {
	mu  sync.Mutex
	all map[string]*kube.Batch[*query]
}

// of returns the batch of a namespace; list answers its queries, and returns how many Pods it has read.
func (b *batches) of(
	namespace string, list func(context.Context, string, []*query) (int, error),
) *kube.Batch[*query] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[string]*kube.Batch[*query]{}
	}
	if b.all[namespace] == nil {
		var next time.Time // of one batch at a time
		b.all[namespace] = &kube.Batch[*query]{
			Wait: func(ctx context.Context) {
				select {
				case <-time.After(time.Until(next)):
				case <-ctx.Done():
				}
			},
			Run: func(ctx context.Context, all []*query) error {
				pods, err := list(ctx, namespace, all)
				next = time.Now().Add(min(time.Duration(pods)*restPerPod, longestRest))
				return err
			},
		}
	}
	return b.all[namespace]
}

// watchClasses queues the VolumeAttributesClasses that need protection, and those that are named no more.
func (p *protection) watchClasses() {
	p.classes.Watch(func(_, c *storagev1.VolumeAttributesClass) {
		if c != nil && (c.DeletionTimestamp != nil || !slices.Contains(c.Finalizers, volume.FinalizerAttributesProtection)) {
			p.enqueueClasses(c.Name)
		}
	})
	p.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		if before != nil {
			p.enqueueClasses(gone(cluster.AttributesOfClaim(before), after, cluster.AttributesOfClaim)...)
		}
	})
	p.volumes.Watch(func(before, after *corev1.PersistentVolume) {
		if before != nil {
			p.enqueueClasses(gone(cluster.AttributesOfVolume(before), after, cluster.AttributesOfVolume)...)
		}
	})
}

// gone returns the names that an object has lost; nil if it was deleted.
func gone[T comparable](names []string, after T, of func(T) []string) []string {
	var none T
	if len(names) == 0 || after == none {
		return names
	}
	left := of(after)
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(left, name) })
}

func (p *protection) enqueueClasses(names ...string) {
	for _, name := range names {
		p.Add(controller.Key{Kind: kindClass, Name: name})
	}
}

func (p *protection) applyClass(ctx context.Context, name string) error {
	class, ok := p.classes.Get(name)
	if !ok {
		return nil
	}
	next, _ := protect.AttributesClass(class, p.claims.By(cluster.ClaimsByAttributes, name),
		p.volumes.By(cluster.VolumesByAttributes, name))
	if next == nil {
		return nil
	}
	_, err := p.classes.Update(ctx, next)
	return err
}
