package gather

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/volume"
)

// aboutClaim reads what concerns one claim.
func (r *Facts) aboutClaim(ctx context.Context, ns, name string) error {
	if err := r.claim(ns, name)(ctx); err != nil {
		return err
	}
	return r.around(ctx, r.pods(ns))
}

// aboutVolume reads what concerns one volume.
func (r *Facts) aboutVolume(ctx context.Context, _, name string) error {
	if err := r.volume(name)(ctx); err != nil {
		return err
	}
	var more []read
	for _, v := range r.Volumes {
		// A claim of a volume that is not bound is why it is not deleted.
		if ref := v.Spec.ClaimRef; ref != nil {
			more = append(more, r.claim(ref.Namespace, ref.Name), r.pods(ref.Namespace))
		}
		if v.Spec.CSI != nil && bind.IsReleased(v) {
			more = append(more, r.sharers(v.Spec.CSI))
		}
	}
	if err := r.together(ctx, more...); err != nil {
		return err
	}
	return r.around(ctx)
}

// sharers returns a read of the volumes that have the handle of a released one, which is not deleted before they go.
// The API finds none by its handle.
func (r *Facts) sharers(of *corev1.CSIPersistentVolumeSource) read {
	return func(ctx context.Context) error {
		all, err := Every[*corev1.PersistentVolume](ctx, "volumes", metav1.ListOptions{},
			r.client.CoreV1().PersistentVolumes().List)
		Add(r, &r.Volumes, slices.DeleteFunc(all, func(v *corev1.PersistentVolume) bool {
			return v.Spec.CSI == nil || v.Spec.CSI.Driver != of.Driver || v.Spec.CSI.VolumeHandle != of.VolumeHandle
		})...)
		return err
	}
}

// aboutPod reads what concerns one Pod: also the other Pods of its namespace, which
// may use the same claims elsewhere.
func (r *Facts) aboutPod(ctx context.Context, ns, name string) error {
	if err := r.pod(ns, name)(ctx); err != nil {
		return err
	}
	pod := involved{ns, "Pod", name}
	var claims []read
	for _, p := range r.Pods {
		r.asked = append(r.asked, pod)
		for _, claim := range cluster.ClaimNames(p) {
			claims = append(claims, r.claim(ns, claim))
		}
	}
	if len(r.Pods) == 0 {
		if err := r.warningsMatching(ns, pod.selector())(ctx); err != nil {
			return err
		}
		if all := r.Warnings.Deletions(); len(all) > 0 {
			for _, claim := range all[0].Claims {
				claims = append(claims, r.claim(ns, claim))
			}
		}
	}
	if err := r.together(ctx, claims...); err != nil {
		return err
	}
	return r.around(ctx, r.pods(ns))
}

// aboutAttachment reads what concerns one attachment: the volume that it names, or
// else its node.
func (r *Facts) aboutAttachment(ctx context.Context, _, name string) error {
	if err := r.attachment(name)(ctx); err != nil {
		return err
	}
	for _, a := range r.Attachments {
		if v := a.Spec.Source.PersistentVolumeName; v != nil {
			if err := r.aboutVolume(ctx, "", *v); err != nil {
				return err
			}
		}
	}
	if len(r.Volumes) > 0 || len(r.Attachments) == 0 {
		return nil
	}
	return r.aboutNode(ctx, "", r.Attachments[0].Spec.NodeName)
}

// aboutNode reads what concerns one node: its attachments, its Pods, and what these
// use.
func (r *Facts) aboutNode(ctx context.Context, _, name string) error {
	if err := r.together(ctx, r.cluster, r.attachments, r.podsOn(name)); err != nil {
		return err
	}
	if err := r.neighboursOn(ctx, map[string]bool{name: true}); err != nil {
		return err
	}
	// A volume that a Pod cannot have here may be elsewhere, with another Pod.
	var elsewhere []read
	for _, ns := range r.spaces() {
		elsewhere = append(elsewhere, r.pods(ns))
	}
	return r.together(ctx, append(elsewhere, r.making(metav1.NamespaceAll), r.moves, r.warnings(metav1.NamespaceAll))...)
}

// aboutDriver reads all: each attachment of a driver may be on another node, for a Pod
// of another namespace.
func (r *Facts) aboutDriver(ctx context.Context, _, _ string) error {
	return r.All(ctx, metav1.NamespaceAll)
}

// aboutClass reads the claims that wait for a volume of a class, and their Pods.
func (r *Facts) aboutClass(ctx context.Context, _, name string) error {
	if err := r.together(ctx, r.claims(metav1.NamespaceAll), r.cluster, r.making(metav1.NamespaceAll), r.moves,
		r.warnings(metav1.NamespaceAll)); err != nil {
		return err
	}
	r.Claims = slices.DeleteFunc(r.Claims, func(c *corev1.PersistentVolumeClaim) bool {
		class, _ := bind.ClassOf(c)
		return class != name || c.Spec.VolumeName != ""
	})
	var pods []read
	for _, ns := range r.spaces() {
		pods = append(pods, r.pods(ns))
	}
	return r.together(ctx, pods...)
}

// aboutNamespace reads what concerns all claims and Pods of a namespace.
func (r *Facts) aboutNamespace(ctx context.Context, _, name string) error {
	if err := r.together(ctx, r.namespaceObject(name), r.claims(name)); err != nil {
		return err
	}
	return r.around(ctx, r.pods(name))
}

// around reads what the claims and volumes that were read depend on, and reads more
// besides.
func (r *Facts) around(ctx context.Context, more ...read) error {
	more = append(more, r.cluster, r.moves)
	if slices.ContainsFunc(r.Claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" }) {
		more = append(more, r.making(metav1.NamespaceAll))
	}
	for _, c := range r.Claims {
		if c.DeletionTimestamp != nil && slices.Contains(c.Finalizers, volume.FinalizerSnapshotSource) {
			more = append(more, r.snapshots(c.Namespace))
			break // the claims are all of one namespace
		}
	}
	if err := r.together(ctx, append(more, r.volumesOfClaims()...)...); err != nil {
		return err
	}
	r.hosted()
	if slices.ContainsFunc(r.Volumes, r.attachable) {
		if err := r.attachments(ctx); err != nil {
			return err
		}
		if err := r.neighbours(ctx); err != nil {
			return err
		}
	}
	return r.warningsAbout(ctx)
}

// attachable says whether a volume may have attachments.
func (r *Facts) attachable(v *corev1.PersistentVolume) bool {
	if v.Spec.CSI == nil {
		return false
	}
	i := slices.IndexFunc(r.Drivers, func(d *storagev1.CSIDriver) bool { return d.Name == v.Spec.CSI.Driver })
	return i < 0 || !attach.SkipsAttach(r.Drivers[i])
}

// neighbours keeps the attachments that concern the volumes that were read, and reads
// what else is on a node that does not have a volume attached which it should: that
// may be why.
func (r *Facts) neighbours(ctx context.Context) error {
	asked := map[string]bool{}
	for _, v := range r.Volumes {
		asked[v.Name] = true
	}
	if slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool { return r.isAsked(p) && p.Spec.NodeName == "" }) {
		return nil // why it has no node may be that nodes have as many attachments as they take
	}
	missing := r.nodesWithout(asked)
	r.Attachments = slices.DeleteFunc(r.Attachments, func(a *storagev1.VolumeAttachment) bool {
		return !asked[ptr.Deref(a.Spec.Source.PersistentVolumeName, "")] && !missing[a.Spec.NodeName]
	})
	if len(missing) == 0 {
		return nil
	}
	var pods []read
	for node := range missing {
		pods = append(pods, r.podsOn(node))
	}
	if err := r.together(ctx, pods...); err != nil {
		return err
	}
	return r.neighboursOn(ctx, missing)
}

// isAsked says whether the question is about this Pod.
func (r *Facts) isAsked(p *corev1.Pod) bool {
	return slices.Contains(r.asked, involved{p.Namespace, "Pod", p.Name})
}

// nodesWithout returns the nodes with a Pod that wants one of the volumes, which is
// not attached there.
func (r *Facts) nodesWithout(volumes map[string]bool) map[string]bool {
	type place struct{ volume, node string }
	attached, claims, missing := map[place]bool{}, map[string]string{}, map[string]bool{}
	for _, a := range r.Attachments {
		if a.Status.Attached && a.DeletionTimestamp == nil {
			attached[place{ptr.Deref(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName}] = true
		}
	}
	for _, c := range r.Claims {
		claims[cluster.Key(c)] = c.Spec.VolumeName
	}
	for _, p := range r.Pods {
		for _, name := range cluster.ClaimNames(p) {
			at := place{claims[p.Namespace+"/"+name], p.Spec.NodeName}
			if volumes[at.volume] && at.node != "" && !cluster.Finished(p) && !attached[at] {
				missing[at.node] = true
			}
		}
	}
	return missing
}

// neighboursOn reads the claims of the Pods that were read, their volumes, and those
// that are attached to the nodes.
func (r *Facts) neighboursOn(ctx context.Context, nodes map[string]bool) error {
	has := map[string]bool{}
	for _, c := range r.Claims {
		has[cluster.Key(c)] = true
	}
	var reads []read
	for _, p := range r.Pods {
		for _, name := range cluster.ClaimNames(p) {
			if key := p.Namespace + "/" + name; !has[key] {
				has[key] = true
				reads = append(reads, r.claim(p.Namespace, name))
			}
		}
	}
	if err := r.together(ctx, reads...); err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	var names []string
	for _, a := range r.Attachments {
		if nodes[a.Spec.NodeName] {
			names = append(names, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""))
		}
	}
	err := r.together(ctx, r.volumesOfClaims(names...)...)
	r.hosted()
	return err
}

// volumesOfClaims reads the volumes that the claims name, and more, as far as they
// were not read yet: one by one, or all when they are many.
func (r *Facts) volumesOfClaims(names ...string) []read {
	has := map[string]bool{"": true}
	for _, v := range r.Volumes {
		has[v.Name] = true
	}
	for _, c := range r.Claims {
		names = append(names, c.Spec.VolumeName)
	}
	var reads []read
	for _, name := range names {
		if !has[name] {
			has[name] = true
			reads = append(reads, r.volume(name))
		}
	}
	if len(reads) > maxGets {
		return []read{r.volumes}
	}
	return reads
}

// spaces returns the namespaces of the claims that were read.
func (r *Facts) spaces() []string {
	var out []string
	for _, c := range r.Claims {
		if !slices.Contains(out, c.Namespace) {
			out = append(out, c.Namespace)
		}
	}
	return out
}
