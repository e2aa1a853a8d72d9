package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// errSourceGone says that the source of a volume's data is there no more, or
// not for long.
var errSourceGone = errors.New("the source of its data is being deleted")

// sources keeps what volumes are made from until they are made: their
// finalizers are on it before CreateVolume is called, and an open intent keeps
// them there. One at a time: of many copies of one claim the first writes.
type sources struct{ mu sync.Mutex }

// protect makes sure that the source of the intent's data stays.
func (p *provisioner) protect(ctx context.Context, in *provision.Intent) error {
	switch {
	case in.Source != "":
		return p.protectClaim(ctx, in.Claim.Namespace, in.SourceName)
	case in.Snapshot != "":
		return p.changeSnapshot(ctx, in.Claim.Namespace, in.SourceName, true)
	}
	return nil
}

func (p *provisioner) protectClaim(ctx context.Context, namespace, name string) error {
	p.sources.mu.Lock()
	defer p.sources.mu.Unlock()
	claim, ok := p.claims.Get(namespace + "/" + name)
	if !ok {
		return errSourceGone
	}
	changed := provision.Protected(claim)
	if changed == nil {
		return nil
	}
	return p.writeSource(ctx, changed)
}

// releaseClaim lets a claim that is being deleted go when no copy of it is
// being made.
func (p *provisioner) releaseClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	driver := provision.ProvisionerOf(claim)
	if v, ok := p.volumes.Get(claim.Spec.VolumeName); ok && v.Spec.CSI != nil {
		driver = v.Spec.CSI.Driver
	}
	if _, ours := p.Drivers.Get(driver); !ours {
		return nil
	}
	changed := provision.Released(claim, p.open())
	if changed == nil {
		return nil
	}
	return p.writeSource(ctx, changed)
}

func (p *provisioner) writeSource(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := p.claims.Update(ctx, claim)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		// A finalizer cannot be added to what is being deleted.
		return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, errSourceGone)
	}
	return err
}

// open returns the intents that are not resolved; what is not one at all names
// no source.
func (p *provisioner) open() []*provision.Intent {
	var out []*provision.Intent
	for _, text := range p.log.Open() {
		if in, err := provision.ParseIntent(text); err == nil {
			out = append(out, in)
		}
	}
	return out
}

// releaseSource wakes what may be let go now that an intent is resolved.
func (p *provisioner) releaseSource(in *provision.Intent) {
	if in.Snapshot != "" {
		p.Add(controller.Key{Kind: kindSnapshot, Namespace: in.Claim.Namespace, Name: in.SourceName})
	}
	if c, ok := p.claims.Get(in.Claim.Namespace + "/" + in.SourceName); ok && in.Source != "" {
		p.wakeClaim(c.UID)
	}
	if c, ok := p.claims.ByUID(string(in.Claim.UID)); ok && c.DeletionTimestamp != nil {
		p.wakeClaim(c.UID)
	}
}

// reconcileSnapshot takes the finalizer off a snapshot from which no volume is
// being made any more; without a name, it looks for those that an earlier
// process has protected and not let go.
func (p *provisioner) reconcileSnapshot(ctx context.Context, namespace, name string) error {
	if name == "" {
		return p.findSnapshots(ctx)
	}
	if slices.ContainsFunc(p.open(), func(in *provision.Intent) bool { return in.Restores(namespace, name) }) {
		return nil
	}
	s, err := p.snapshot(ctx, namespace, name)
	if _, ours := p.Drivers.Get(s.Driver); err != nil || !s.Exists || s.Driver != "" && !ours {
		return err
	}
	if err := p.changeSnapshot(ctx, namespace, name, false); !errors.Is(err, errSourceGone) {
		return err
	}
	return nil
}

func (p *provisioner) findSnapshots(ctx context.Context) error {
	restores := func(name string) bool { d, ok := p.Drivers.Get(name); return ok && d.Controller.Snapshot }
	if !slices.ContainsFunc(p.Drivers.Names(), restores) {
		return nil
	}
	var all struct{ Items []snapshotObject }
	err := p.custom(ctx, &all, volume.ResourceSnapshots)
	if apierrors.IsNotFound(err) {
		return nil
	}
	for _, o := range all.Items {
		if slices.Contains(o.Finalizers, volume.FinalizerRestoring) {
			p.Add(controller.Key{Kind: kindSnapshot, Namespace: o.Namespace, Name: o.Name})
		}
	}
	return err
}

// changeSnapshot puts the finalizer on a snapshot, or takes it off.
func (p *provisioner) changeSnapshot(ctx context.Context, namespace, name string, protect bool) error {
	p.sources.mu.Lock()
	defer p.sources.mu.Unlock()
	path := []string{"namespaces", namespace, volume.ResourceSnapshots, name}
	var o unstructured.Unstructured
	err := p.custom(ctx, &o, path...)
	if apierrors.IsNotFound(err) || err == nil && protect && o.GetDeletionTimestamp() != nil {
		return fmt.Errorf("snapshot %s/%s: %w", namespace, name, errSourceGone)
	}
	if err != nil || slices.Contains(o.GetFinalizers(), volume.FinalizerRestoring) == protect {
		return err
	}
	if protect {
		o.SetFinalizers(append(o.GetFinalizers(), volume.FinalizerRestoring))
	} else {
		o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == volume.FinalizerRestoring }))
	}
	body, err := o.MarshalJSON()
	if err == nil {
		err = p.Client.Discovery().RESTClient().Put().AbsPath(customPath(path)...).SetHeader("Content-Type",
			"application/json").Body(body).Do(ctx).Error()
	}
	if apierrors.IsForbidden(err) {
		// Roles from before there was this finalizer do not allow it; volumes
		// were restored then, too.
		p.Env.Log.Warn("snapshots cannot be protected while volumes are made from them: the right to update them is missing",
			"snapshot", namespace+"/"+name, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("protect snapshot %s/%s as a source: %w", namespace, name, err)
	}
	return nil
}
