package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

const (
	space = "default"
	class = "bench"
	// users is how many requests the benchmark has under way itself.
	users = 50
	// few is how many volumes a peer at its defaults is measured with: its rate
	// is a constant.
	few = 100
)

// measurePeers has volplane and Kubernetes' controllers create and delete volumes.
func measurePeers(ctx context.Context, figures map[string]any, claims, rounds int) error {
	for name, delay := range map[string]time.Duration{"": 0, "slow_": 500 * time.Millisecond} {
		made, deleted := map[string][]float64{}, map[string][]float64{}
		for round := range rounds {
			for _, peer := range []struct {
				name           string
				claims, rounds int
				run            func(context.Context, *arena) error
			}{
				{"volplane", claims, rounds, func(ctx context.Context, a *arena) error { return a.ours(ctx) }},
				{"kubernetes_raised", claims, rounds, func(_ context.Context, a *arena) error { return a.theirs(true) }},
				{"kubernetes_defaults", few, 1, func(_ context.Context, a *arena) error { return a.theirs(false) }},
			} {
				if round >= peer.rounds {
					continue
				}
				m, d, err := measurePeer(ctx, delay, peer.claims, peer.run)
				if err != nil {
					return fmt.Errorf("%s: %w", peer.name, err)
				}
				made[peer.name], deleted[peer.name] = append(made[peer.name], m), append(deleted[peer.name], d)
			}
		}
		for what, all := range map[string]map[string][]float64{"bound": made, "deleted": deleted} {
			ours := median(all["volplane"])
			for peer, measured := range all {
				figures[name+what+"_per_s_"+peer] = median(measured)
				if peer != "volplane" {
					figures[name+what+"_times_"+peer] = ours / median(measured)
				}
			}
		}
	}
	return nil
}

// measurePeer returns the number of claims that become bound in a second, and of volumes that are deleted
// in a second.
func measurePeer(
	ctx context.Context, delay time.Duration, claims int, run func(context.Context, *arena) error,
) (made, deleted float64, err error) {
	a, ctx, err := newArena(ctx, delay)
	if err != nil {
		return 0, 0, err
	}
	defer a.close()
	if err := a.prepare(ctx); err != nil {
		return 0, 0, err
	}
	if err := run(ctx, a); err != nil {
		return 0, 0, err
	}
	// The peer is ready when it serves: a first claim is created and deleted.
	if _, err := a.life(ctx, "first"); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := a.make(ctx, claims, class); err != nil {
		return 0, 0, err
	}
	made = float64(claims) / time.Since(began).Seconds()
	began = time.Now()
	if err := a.remove(ctx, claims); err != nil {
		return 0, 0, err
	}
	return made, float64(claims) / time.Since(began).Seconds(), nil
}

func (a *arena) prepare(ctx context.Context) error {
	_, err := a.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driverName,
	}, metav1.CreateOptions{})
	return err
}

func claimOf(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}}
}

// make creates claims and returns when all are bound.
func (a *arena) make(ctx context.Context, claims int, class string) error {
	bound := map[string]bool{}
	done, stop := a.until(ctx, a.informers().Core().V1().PersistentVolumeClaims().Informer(), func(o any, _ bool) bool {
		if c := o.(*corev1.PersistentVolumeClaim); c.Status.Phase == corev1.ClaimBound {
			bound[c.Name] = true
		}
		return len(bound) == claims
	})
	defer stop()
	err := a.each(claims, func(name string) error {
		_, err := a.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, claimOf(name, class), metav1.CreateOptions{})
		return err
	})
	return errors.Join(err, done())
}

// remove deletes claims and returns when no volume is left.
func (a *arena) remove(ctx context.Context, claims int) error {
	gone := map[string]bool{}
	done, stop := a.until(ctx, a.informers().Core().V1().PersistentVolumes().Informer(), func(o any, deleted bool) bool {
		if deleted {
			gone[o.(*corev1.PersistentVolume).Name] = true
		}
		return len(gone) == claims
	})
	defer stop()
	err := a.each(claims, func(name string) error {
		return a.client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, name, metav1.DeleteOptions{})
	})
	return errors.Join(err, done())
}

// each calls f with the name of each claim, for several at the same time.
func (a *arena) each(claims int, f func(name string) error) error {
	var names []string
	for i := range claims {
		names = append(names, fmt.Sprint("c", i))
	}
	return eachOf(names, f)
}

// eachOf calls f with each name, for several at the same time.
func eachOf(names []string, f func(name string) error) error {
	var all errgroup.Group
	all.SetLimit(users)
	for _, name := range names {
		all.Go(func() error { return f(name) })
	}
	return all.Wait()
}

// informers returns a factory of informers, which are for one use each.
func (a *arena) informers() informers.SharedInformerFactory {
	return informers.NewSharedInformerFactory(a.client, 0)
}

// until watches objects until f has returned true for the last one.
func (a *arena) until(
	ctx context.Context, informer cache.SharedIndexInformer, f func(o any, deleted bool) bool,
) (done func() error, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	last, once := make(chan struct{}), sync.Once{}
	tell := func(o any, deleted bool) {
		if f(o, deleted) {
			once.Do(func() { close(last) })
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { tell(o, false) }, UpdateFunc: func(_, o any) { tell(o, false) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			tell(o, true)
		},
	})
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	return func() error {
		select {
		case <-last:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, cancel
}

// life creates a claim and deletes it when it is bound, and returns the time until then.
func (a *arena) life(ctx context.Context, name string) (time.Duration, error) {
	var took time.Duration
	claims := a.client.CoreV1().PersistentVolumeClaims(space)
	w, err := claims.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	v, err := a.client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	defer v.Stop()
	began := time.Now()
	if _, err := claims.Create(ctx, claimOf(name, class), metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	for e := range w.ResultChan() {
		if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && c.Status.Phase == corev1.ClaimBound {
			took = time.Since(began)
			break
		}
	}
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return took, err
	}
	for e := range v.ResultChan() {
		if e.Type == watch.Deleted {
			return took, nil
		}
	}
	return took, fmt.Errorf("volume of claim %s: the watch ended", name)
}
