package ephemeral

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/ephemeral"
	"volplane.dev/volplane/internal/kube"
)

const (
	kindPod   = "pod"
	kindClaim = "claim"
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:    "ephemeral",
		Inputs:  kube.Read("", "persistentvolumeclaims", "pods"),
		Outputs: []kube.Access{kube.Write("", "persistentvolumeclaims", "create", "delete"), kube.Write("", "pods", "get")},
	}
}

type ephemeralVolumes struct {
	controller.Env
	*controller.Controller
	claims kube.Writer[*corev1.PersistentVolumeClaim]
	pods   *kube.Cache[*corev1.Pod]
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env) *controller.Controller {
	e := &ephemeralVolumes{
		Env: env, Controller: &controller.Controller{Declaration: Declaration(), Workers: 16, Log: env.Log},
		claims: env.Caches.WriteClaims(env.Client), pods: env.Caches.Pods(),
	}
	e.Controller.Reconcile = e.reconcile
	e.pods.Watch(func(before, after *corev1.Pod) {
		switch {
		case after == nil:
			for _, name := range cluster.ClaimNames(before) {
				e.Add(controller.Key{Kind: kindClaim, Namespace: before.Namespace, Name: name})
			}
		case before == nil:
			e.enqueue(after)
		}
	})
	e.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		switch {
		case after == nil:
			e.enqueue(e.pods.By(cluster.PodsByClaim, cluster.Key(before))...)
		case before == nil:
			e.Add(controller.Key{Kind: kindClaim, Namespace: after.Namespace, Name: after.Name})
			e.enqueue(e.pods.By(cluster.PodsByClaim, cluster.Key(after))...)
		}
	})
	return e.Controller
}

// enqueue queues those of the Pods that have generic ephemeral volumes.
func (e *ephemeralVolumes) enqueue(pods ...*corev1.Pod) {
	for _, p := range pods {
		for i := range p.Spec.Volumes {
			if p.Spec.Volumes[i].Ephemeral != nil {
				e.Add(controller.Key{Kind: kindPod, Namespace: p.Namespace, Name: p.Name})
				break
			}
		}
	}
}

func (e *ephemeralVolumes) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	if key.Kind == kindClaim {
		return controller.Result{}, e.reconcileClaim(ctx, key)
	}
	p, ok := e.pods.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	var failed []error
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Ephemeral != nil {
			f := e.gather(p, v)
			failed = append(failed, e.apply(ctx, f, ephemeral.Claim(f)))
		}
	}
	return controller.Result{}, errors.Join(failed...)
}

func (e *ephemeralVolumes) gather(p *corev1.Pod, v *corev1.Volume) ephemeral.Facts {
	f := ephemeral.Facts{Pod: p, Volume: v}
	f.Claim, _ = e.claims.Get(p.Namespace + "/" + ephemeral.NameOf(p, v))
	return f
}

func (e *ephemeralVolumes) apply(ctx context.Context, f ephemeral.Facts, p ephemeral.Plan) error {
	if p.Refused {
		e.Events.Warn(f.Pod, p.Because)
	}
	if p.Create == nil {
		return nil
	}
	_, err := e.claims.Create(ctx, p.Create)
	switch {
	case apierrors.IsAlreadyExists(err):
		// The Pod is queued when the cache shows the claim.
		return nil
	case err != nil:
		e.Events.Warn(f.Pod, ephemeral.Failed(p.Create.Name, errors.Unwrap(err).Error()))
		return err
	}
	e.Events.Note(f.Pod, p.Because)
	return nil
}

// reconcileClaim deletes a claim whose Pod does not exist any more. The cache may not show a new Pod yet, so the API
// server is read, too.
func (e *ephemeralVolumes) reconcileClaim(ctx context.Context, key controller.Key) error {
	c, ok := e.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return nil
	}
	owner := ephemeral.OwnerOf(c)
	if owner == nil {
		return nil
	}
	p, _ := e.pods.Get(c.Namespace + "/" + owner.Name)
	if remove, _ := ephemeral.Left(c, p); !remove {
		return nil
	}
	p, err := e.Client.CoreV1().Pods(c.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		p, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("look for the owner of claim %s: %w", key, err)
	}
	remove, why := ephemeral.Left(c, p)
	if !remove {
		return nil
	}
	e.Env.Log.Info("claim is deleted", "claim", cluster.Key(c), "reason", why.Message)
	return e.claims.Delete(ctx, c, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(c.UID), ResourceVersion: ptr.To(c.ResourceVersion)},
	})
}
