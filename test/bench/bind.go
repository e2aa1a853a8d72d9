package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// byHand is a class without a provisioner.
const byHand = "by-hand"

// measureBinding has claims bound to existing volumes: by volplane a tenth of them and all, by Kubernetes'
// binder with raised limits all.
func measureBinding(ctx context.Context, figures map[string]any, claims int) error {
	times := map[string]float64{}
	for _, one := range []struct {
		name   string
		claims int
		run    func(context.Context, *arena) error
	}{
		{"volplane_tenth", claims / 10, func(ctx context.Context, a *arena) error { return a.ours(ctx) }},
		{"volplane", claims, func(ctx context.Context, a *arena) error { return a.ours(ctx) }},
		{"kubernetes_raised", claims, func(_ context.Context, a *arena) error { return a.theirs(true) }},
	} {
		took, err := measureBind(ctx, figures, one.claims, one.run)
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		times[one.name] = took.Seconds()
		figures["bind_s_"+one.name] = took.Seconds()
	}
	figures["bind_times_faster"] = times["kubernetes_raised"] / times["volplane"]
	figures["bind_ten_times_as_many"] = times["volplane"] / times["volplane_tenth"]
	return nil
}

func measureBind(
	ctx context.Context, figures map[string]any, claims int, run func(context.Context, *arena) error,
) (time.Duration, error) {
	a, ctx, err := newArena(ctx, 0)
	if err != nil {
		return 0, err
	}
	defer a.close()
	if err := run(ctx, a); err != nil {
		return 0, err
	}
	if err := a.makeVolumes(ctx, claims); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := a.make(ctx, claims, byHand); err != nil || a.stopOurs == nil {
		return time.Since(began), err
	}
	took := time.Since(began)
	return took, a.measureRestart(ctx, figures, claims)
}

// measureRestart measures the time from a start of volplane's controllers, with all these claims, to the
// next claim bound.
func (a *arena) measureRestart(ctx context.Context, figures map[string]any, claims int) error {
	if err := a.prepare(ctx); err != nil {
		return err
	}
	a.stopOurs()
	calls := a.driver.created.Load() + a.driver.deleted.Load()
	began := time.Now()
	if err := a.ours(ctx); err != nil {
		return err
	}
	started := time.Since(began)
	took, err := a.life(ctx, "next")
	figures[fmt.Sprintf("restart_with_%d_to_bound_s", claims)] = (started + took).Seconds()
	// One creates the next claim's volume, one deletes it.
	figures[fmt.Sprintf("restart_with_%d_driver_calls", claims)] = a.driver.created.Load() +
		a.driver.deleted.Load() - calls
	return err
}

// makeVolumes creates volumes of different sizes, and returns when all are available.
func (a *arena) makeVolumes(ctx context.Context, n int) error {
	ready := map[string]bool{}
	done, stop := a.until(ctx, a.informers().Core().V1().PersistentVolumes().Informer(), func(o any, _ bool) bool {
		if v := o.(*corev1.PersistentVolume); v.Status.Phase == corev1.VolumeAvailable {
			ready[v.Name] = true
		}
		return len(ready) == n
	})
	defer stop()
	err := a.each(n, func(name string) error {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			StorageClassName: byHand, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(int64(1+len(name)%7)<<30, resource.BinarySI),
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name},
			},
		}}
		_, err := a.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
		return err
	})
	return errors.Join(err, done())
}
