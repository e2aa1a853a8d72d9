package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

const (
	// machines is how many nodes volumes are attached to.
	machines = 50
	// aFew is the number of attachments in a row with which a peer is measured, which is not the subject of the benchmark.
	aFew = 20
)

// attacher is a peer that attaches, with the number of attachments.
type attacher struct {
	name                string
	volumes, oneByOne   int
	run                 func(context.Context, *arena) error
	attached, detached  float64
	median, ninetyNinth time.Duration
}

// measureAttaching makes volplane and Kubernetes' controllers attach volumes to nodes and detach them, all together and
// one after the other.
func measureAttaching(ctx context.Context, figures map[string]any, volumes int) error {
	peers := []*attacher{
		{name: "volplane", volumes: volumes, oneByOne: 200, run: func(ctx context.Context, a *arena) error {
			return a.ours(ctx, "attachdetach", "attacher")
		}},
		{name: "kubernetes_raised", volumes: volumes, oneByOne: aFew, run: func(_ context.Context, a *arena) error {
			return a.theirsAttach(true)
		}},
		{name: "kubernetes_defaults", volumes: few, oneByOne: aFew, run: func(_ context.Context, a *arena) error {
			return a.theirsAttach(false)
		}},
	}
	for _, p := range peers {
		if err := p.measure(ctx, figures); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		figures["attached_per_s_"+p.name], figures["detached_per_s_"+p.name] = p.attached, p.detached
		figures["attached_ms_median_"+p.name], figures["attached_ms_p99_"+p.name] = milliseconds(p.median),
			milliseconds(p.ninetyNinth)
	}
	for _, p := range peers[1:] {
		figures["attached_times_"+p.name] = peers[0].attached / p.attached
		figures["detached_times_"+p.name] = peers[0].detached / p.detached
	}
	return nil
}

func (p *attacher) measure(ctx context.Context, figures map[string]any) error {
	// One more is for those that are attached one after the other.
	a, ctx, err := newWired(ctx, p.volumes+1)
	if err != nil {
		return err
	}
	defer a.close()
	if err := p.run(ctx, a); err != nil {
		return err
	}
	s, err := a.observe(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	if err := p.latency(ctx, a, s); err != nil {
		return err
	}
	return p.storm(ctx, a, s, figures)
}

// latency attaches and detaches one volume several times. The first time does not count, since it only
// shows that the peer is ready.
func (p *attacher) latency(ctx context.Context, a *arena, s *sights) error {
	name := fmt.Sprint("c", p.volumes)
	var times []time.Duration
	for range p.oneByOne + 1 {
		s.clear()
		if err := a.use(ctx, name, nodeNamed(0)); err != nil {
			return err
		}
		var took time.Duration
		if err := s.wait(ctx, func() bool {
			took = s.told[name].Sub(s.made[name])
			return len(s.told) == 1 && len(s.made) == 1
		}); err != nil {
			return err
		}
		times = append(times, took)
		if err := a.unuse(ctx, name); err != nil {
			return err
		}
		if err := s.wait(ctx, func() bool { return len(s.gone) == 1 }); err != nil {
			return err
		}
	}
	times = times[1:]
	slices.Sort(times)
	p.median, p.ninetyNinth = times[len(times)/2], times[len(times)*99/100]
	return nil
}

// storm attaches all volumes, and detaches them after their nodes have unmounted them.
func (p *attacher) storm(ctx context.Context, a *arena, s *sights, figures map[string]any) error {
	s.clear()
	before, err := a.writes(ctx)
	if err != nil {
		return err
	}
	calls := a.driver.attached.Load()
	began := time.Now()
	if err := a.eachOnNode(p.volumes, func(name, node string) error { return a.use(ctx, name, node) }); err != nil {
		return err
	}
	if err := s.wait(ctx, func() bool { return len(s.told) == p.volumes }); err != nil {
		return err
	}
	p.attached = float64(p.volumes) / time.Since(began).Seconds()
	figures["attach_calls_each_"+p.name] = float64(a.driver.attached.Load()-calls) / float64(p.volumes)
	if before, err = a.report(ctx, figures, "attach_writes_each_"+p.name, before, p.volumes); err != nil {
		return err
	}
	if err := a.mounted(ctx, p.volumes); err != nil {
		return err
	}
	calls = a.driver.detached.Load()
	began = time.Now()
	if err := a.eachOnNode(p.volumes, func(name, _ string) error { return a.unuse(ctx, name) }); err != nil {
		return err
	}
	if err := a.mounted(ctx, 0); err != nil {
		return err
	}
	if err := s.wait(ctx, func() bool { return len(s.gone) == p.volumes }); err != nil {
		return err
	}
	p.detached = float64(p.volumes) / time.Since(began).Seconds()
	figures["detach_calls_each_"+p.name] = float64(a.driver.detached.Load()-calls) / float64(p.volumes)
	_, err = a.report(ctx, figures, "detach_writes_each_"+p.name, before, p.volumes)
	return err
}

func nodeNamed(n int) string { return fmt.Sprint("node-", n%machines) }

func (a *arena) makeNodes(ctx context.Context) error {
	for i := range machines {
		name := nodeNamed(i)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnControllerManagedAttach: "true"}},
		}
		if _, err := a.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
		ready := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := a.nodeStatus(ctx, name, map[string]any{"conditions": ready}); err != nil {
			return err
		}
		csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: "id-" + name}}
		if _, err := a.client.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (a *arena) nodeStatus(ctx context.Context, name string, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return err
	}
	_, err = a.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// wire creates a volume and a claim that are bound to each other.
func (a *arena) wire(ctx context.Context, name string) error {
	claim := claimOf(name, byHand)
	claim.Spec.VolumeName = name
	claim, err := a.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: byHand, AccessModes: claim.Spec.AccessModes,
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		ClaimRef: &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", Namespace: space, Name: name, UID: claim.UID,
		},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name},
		},
	}}
	if _, err := a.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = a.client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, name, types.MergePatchType,
		[]byte(`{"status":{"phase":"Bound","accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"}}}`),
		metav1.PatchOptions{}, "status")
	return err
}

// use creates a Pod on a node that uses a claim of the same name.
func (a *arena) use(ctx context.Context, name, node string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}},
	}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}}
	_, err := a.client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (a *arena) unuse(ctx context.Context, name string) error {
	return a.client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}

func (a *arena) eachOnNode(n int, f func(name, node string) error) error {
	return a.each(n, func(name string) error {
		var i int
		if _, err := fmt.Sscanf(name, "c%d", &i); err != nil {
			return err
		}
		return f(name, nodeNamed(i))
	})
}

// mounted makes the nodes report exactly the first n volumes as in use.
func (a *arena) mounted(ctx context.Context, n int) error {
	for i := range machines {
		uses := []string{}
		for v := i; v < n; v += machines {
			uses = append(uses, volume.UniqueName(driverName, fmt.Sprint("c", v)))
		}
		if err := a.nodeStatus(ctx, nodeNamed(i), map[string]any{"volumesInUse": uses}); err != nil {
			return err
		}
	}
	return nil
}

// sights has the times at which attachments were seen to be created, reported to their nodes, and deleted,
// by volume.
type sights struct {
	stop             func()
	news             chan struct{}
	mu               sync.Mutex
	made, told, gone map[string]time.Time
}

func (s *sights) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made, s.told, s.gone = map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}
}

// see records the first time at which something was seen.
func (s *sights) see(all *map[string]time.Time, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := (*all)[name]; known {
		return
	}
	(*all)[name] = time.Now()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// wait waits until a condition holds, and checks it after every event.
func (s *sights) wait(ctx context.Context, so func() bool) error {
	for {
		s.mu.Lock()
		is := so()
		s.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// observe watches attachments and nodes.
func (a *arena) observe(ctx context.Context) (*sights, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &sights{stop: cancel, news: make(chan struct{}, 1)}
	s.clear()
	factory := informers.NewSharedInformerFactory(a.client, 0)
	attachments, nodes := factory.Storage().V1().VolumeAttachments().Informer(), factory.Core().V1().Nodes().Informer()
	nameOf := func(o any) string { return *o.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName }
	_, err := attachments.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.see(&s.made, nameOf(o)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			s.see(&s.gone, nameOf(o))
		},
	})
	_, alsoErr := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		for _, v := range o.(*corev1.Node).Status.VolumesAttached {
			_, handle, _ := strings.Cut(string(v.Name), "^")
			s.see(&s.told, handle)
		}
	}})
	factory.StartWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), attachments.HasSynced, nodes.HasSynced)
	return s, errors.Join(err, alsoErr)
}
