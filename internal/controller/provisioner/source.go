package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// errSourceGone says that the claim or snapshot that a volume is created from was deleted or is being deleted.
var errSourceGone = errors.New("the source of its data is being deleted")

// protect writes the finalizer to the source of an intent, if it has one: before CreateVolume is called. It stays while
// there is an unresolved intent.
func (p *provisioner) protect(ctx context.Context, in *provision.Intent) error {
	switch {
	case in.Source != "":
		return p.protectClaim(ctx, in.From().Key())
	case in.Snapshot != "":
		return p.changeSnapshot(ctx, in.From().Namespace, in.SourceName, true)
	}
	return nil
}

func (p *provisioner) protectClaim(ctx context.Context, key string) error {
	p.protecting.Lock()
	defer p.protecting.Unlock()
	claim, ok := p.claims.Get(key)
	if !ok {
		return errSourceGone
	}
	changed := provision.Protected(claim)
	if changed == nil {
		return nil
	}
	return p.writeSource(ctx, changed)
}

// releaseClaim removes the finalizer from a claim that is being deleted, if no clone of it is being created.
func (p *provisioner) releaseClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, ours := p.Drivers.For(provision.ProvisionerOf(claim), volume.SelectedNode(claim.Annotations))
	if v, ok := p.volumes.Get(claim.Spec.VolumeName); ok && v.Spec.CSI != nil {
		_, ours = p.callerOf(v.Spec.CSI.Driver, v)
		ours = ours || p.letsGo(v)
	}
	if !ours {
		return nil
	}
	changed := provision.Released(claim, p.log.open())
	if changed == nil {
		return nil
	}
	return p.writeSource(ctx, changed)
}

func (p *provisioner) writeSource(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := p.claims.Update(ctx, claim)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		// A finalizer cannot be added to an object that is being deleted.
		return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, errSourceGone)
	}
	return err
}

// releaseSource queues the source of a resolved intent, whose finalizer may not be needed any more,
// and the claim itself, which may be the source of others.
func (p *provisioner) releaseSource(in *provision.Intent) {
	if in.Snapshot != "" {
		p.Add(controller.Key{Kind: kindSnapshot, Namespace: in.From().Namespace, Name: in.SourceName})
	}
	if c, ok := p.claims.Get(in.From().Key()); ok && in.Source != "" {
		p.enqueueClaim(c.UID)
	}
	if c, ok := p.claims.ByUID(string(in.Claim.UID)); ok && c.DeletionTimestamp != nil {
		p.enqueueClaim(c.UID)
	}
}

// reconcileSnapshot removes the finalizer from a snapshot from which no volume is being created any more. Without a
// name, it queues all snapshots that have the finalizer, perhaps from an earlier process.
func (p *provisioner) reconcileSnapshot(ctx context.Context, namespace, name string) error {
	if name == "" {
		return p.enqueueSnapshots(ctx)
	}
	if slices.ContainsFunc(p.log.open(), func(in *provision.Intent) bool { return in.Restores(namespace, name) }) {
		return nil
	}
	if waits, err := p.isRestoredElsewhere(ctx, namespace, name); waits || err != nil {
		return err
	}
	s, err := p.snapshot(ctx, namespace, name)
	if err != nil || !s.Exists || !p.isOurs(s) {
		return err
	}
	if err := p.changeSnapshot(ctx, namespace, name, false); !errors.Is(err, errSourceGone) {
		return err
	}
	return nil
}

// isOurs says whether this process removes the finalizer from a snapshot.
func (p *provisioner) isOurs(s provision.Snapshot) bool {
	_, called := p.Drivers.Get(s.Driver)
	return called || s.Driver == "" || s.Lost && p.Scope.Has("") && p.log.ReadsAll
}

// isRestoredElsewhere says whether the provisioner of another node may be creating a volume from a snapshot. A claim of
// another namespace that may not have its data does not keep it.
func (p *provisioner) isRestoredElsewhere(ctx context.Context, namespace, name string) (bool, error) {
	for _, c := range p.claims.List() {
		d, ok := p.Drivers.Get(provision.ProvisionerOf(c))
		node, from := volume.SelectedNode(c.Annotations), cluster.SourceOf(c)
		if !ok || d.Place == nil || node == "" || node == d.Scope.Node || c.Spec.VolumeName != "" ||
			!from.IsSnapshot() || from.Key() != namespace+"/"+name {
			continue
		}
		if granted, err := p.granted(ctx, c.Namespace, from); granted || err != nil {
			return granted, err
		}
	}
	return false, nil
}

// releaseRestored queues the snapshot from which the volume of a claim was created on any node: the provisioner of each
// node keeps the finalizer as long as another one may need it.
func (p *provisioner) releaseRestored(claim *corev1.PersistentVolumeClaim) {
	from := cluster.SourceOf(claim)
	if d, ok := p.Drivers.Get(provision.ProvisionerOf(claim)); ok && d.Place != nil && from.IsSnapshot() {
		p.Add(controller.Key{Kind: kindSnapshot, Namespace: from.Namespace, Name: from.Name})
	}
}

func (p *provisioner) enqueueSnapshots(ctx context.Context) error {
	restores := func(name string) bool { d, ok := p.Drivers.Get(name); return ok && d.Controller.Snapshot }
	if !p.log.ReadsAll && !slices.ContainsFunc(p.Drivers.Names(), restores) {
		return nil
	}
	all := &metav1.PartialObjectMetadataList{}
	err := p.custom(ctx, p.aboutCustom(http.MethodGet, "", volume.ResourceSnapshots), all)
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

// changeSnapshot adds or removes the finalizer of a snapshot. Fields that only later versions of the custom resource
// have stay as they are.
func (p *provisioner) changeSnapshot(ctx context.Context, namespace, name string, protect bool) error {
	p.protecting.Lock()
	defer p.protecting.Unlock()
	o := &unstructured.Unstructured{}
	err := p.getCustom(ctx, o, namespace, volume.ResourceSnapshots, name)
	if apierrors.IsNotFound(err) || err == nil && protect && o.GetDeletionTimestamp() != nil {
		return fmt.Errorf("snapshot %s/%s: %w", namespace, name, errSourceGone)
	}
	if err != nil || slices.Contains(o.GetFinalizers(), volume.FinalizerRestoring) == protect {
		return err
	}
	if protect {
		o.SetFinalizers(append(o.GetFinalizers(), volume.FinalizerRestoring))
	} else {
		o.SetFinalizers(volume.Without(o.GetFinalizers(), volume.FinalizerRestoring))
	}
	body, err := o.MarshalJSON()
	if err == nil {
		put := p.aboutCustom(http.MethodPut, namespace, volume.ResourceSnapshots).Name(name)
		err = put.SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	}
	if apierrors.IsForbidden(err) {
		// Roles of older versions do not allow this. Restoring without the finalizer works, too.
		p.Env.Log.Warn("snapshots cannot be protected while volumes are created from them: the right to update them is "+
			"missing",
			"snapshot", namespace+"/"+name, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("protect snapshot %s/%s as a source: %w", namespace, name, err)
	}
	return nil
}

// attributes returns the VolumeAttributesClass that a claim names, or nil. It reads from the API
// server: servers before 1.34 have no such classes to watch.
func (p *provisioner) attributes(
	ctx context.Context, claim *corev1.PersistentVolumeClaim,
) (*storagev1.VolumeAttributesClass, error) {
	name := provision.AttributesOf(claim)
	if name == "" || p.Choices.WithoutAttributes {
		return nil, nil
	}
	got, err := p.Client.StorageV1().VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read VolumeAttributesClass %s: %w", name, err)
	}
	return got, nil
}

// snapshot returns the state of a snapshot. It reads from the API server: a watch of a custom
// resource that is not installed would never start.
func (p *provisioner) snapshot(ctx context.Context, namespace, name string) (provision.Snapshot, error) {
	s, c := &snapshotv1.VolumeSnapshot{}, &cluster.VolumeSnapshotContent{}
	switch err := p.getCustom(ctx, s, namespace, volume.ResourceSnapshots, name); {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// The custom resource is not installed.
		return provision.Snapshot{}, nil
	case apierrors.IsNotFound(err):
		return provision.Snapshot{Installed: true}, nil
	case err != nil:
		return provision.Snapshot{}, err
	}
	bound := ""
	if s.Status != nil {
		bound = ptr.Deref(s.Status.BoundVolumeSnapshotContentName, "")
	}
	err := p.getCustom(ctx, c, "", volume.ResourceSnapshotContents, bound)
	if apierrors.IsNotFound(err) {
		return provision.SnapshotOf(p.view, s, nil), nil
	}
	return provision.SnapshotOf(p.view, s, c), err
}

// getCustom reads an object of a custom resource of snapshots.
func (p *provisioner) getCustom(ctx context.Context, into any, namespace, resource, name string) error {
	if !kube.IsObjectName(name) {
		return apierrors.NewNotFound(schema.GroupResource{Group: volume.GroupSnapshot, Resource: resource}, name)
	}
	return p.custom(ctx, p.aboutCustom(http.MethodGet, namespace, resource).Name(name), into)
}

// aboutCustom returns a request about a custom resource of snapshots.
func (p *provisioner) aboutCustom(verb, namespace, resource string) *rest.Request {
	r := p.Client.Discovery().RESTClient().Verb(verb).AbsPath("apis", volume.GroupSnapshot, "v1")
	return r.NamespaceIfScoped(namespace, namespace != "").Resource(resource)
}

// custom sends a request that reads.
func (p *provisioner) custom(ctx context.Context, r *rest.Request, into any) error {
	result := r.Do(ctx)
	// Unlike Raw, Error distinguishes a missing object from a missing resource.
	err := result.Error()
	if err == nil {
		var body []byte
		if body, err = result.Raw(); err == nil {
			err = json.Unmarshal(body, into)
		}
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", r.URL().Path, err)
	}
	return nil
}

// maxGrants is how many ReferenceGrants are read at a time: anyone may create any number of them in a namespace.
const maxGrants = 500

// granted says whether the claims of a namespace may have the data of a source: they are in the same namespace, or a
// ReferenceGrant of the other one says so. It reads from the API server, because a cache would still have a grant that
// was just withdrawn.
func (p *provisioner) granted(ctx context.Context, namespace string, from cluster.DataSource) (bool, error) {
	if from.Namespace == "" || from.Namespace == namespace {
		return true, nil
	}
	if !p.Choices.OtherNamespaces {
		return false, nil
	}
	grants := func(g cluster.ReferenceGrant) bool { return provision.Grants(&g, namespace, from) }
	for next := ""; ; {
		list := &cluster.ReferenceGrantList{}
		err := p.custom(ctx, p.Client.Discovery().RESTClient().Get().
			AbsPath("apis", volume.GroupGateway, volume.GatewayVersion).Namespace(from.Namespace).
			Resource(volume.ResourceGrants).Param("limit", strconv.Itoa(maxGrants)).Param("continue", next), list)
		if apierrors.IsNotFound(err) {
			return false, nil // the custom resource is not installed
		}
		if err != nil || slices.ContainsFunc(list.Items, grants) {
			return err == nil, err
		}
		if next = list.Continue; next == "" {
			return false, nil
		}
	}
}
