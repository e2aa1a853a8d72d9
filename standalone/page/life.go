package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/gather"
)

const (
	// mostRelated limits the objects whose times make a history, and mostMoments the entries shown, the newest.
	mostRelated, mostMoments = 8, 200
	// mostEvents bounds the events that are read of one object.
	mostEvents = 100
	// lifeTime is the time limit of reading.
	lifeTime = 5 * time.Second
)

// moment is one thing that happened to an object.
type moment struct {
	at time.Time
	// At is when, What what happened, and By who said so.
	At, Subject, What, By string
	// Warning says that something went wrong.
	Warning bool
}

// related returns an object and those whose history belongs to it: for a claim or a volume both, the attachments, and
// the Pods that use it.
func (g glance) related(o object) []object {
	all := []object{o}
	add := func(more object) {
		if len(all) < mostRelated && !slices.Contains(all, more) {
			all = append(all, more)
		}
	}
	claim, name := o.ns+"/"+o.name, ""
	switch o.kind {
	case "pvc":
		if c := cluster.Find(g.walk.View.Claims, claim); c != nil {
			name = c.Spec.VolumeName
		}
	case "pv":
		name, claim = o.name, ""
		if v := cluster.Find(g.walk.View.Volumes, name); v != nil && v.Spec.ClaimRef != nil {
			add(object{"pvc", v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name})
			claim = v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
		}
	default:
		return all
	}
	if name != "" {
		add(object{"pv", "", name})
		for _, a := range g.walk.View.Attachments.By(cluster.AttachmentsByVolume, name) {
			add(object{"volumeattachment", "", a.Name})
		}
	}
	for _, p := range g.walk.View.Pods.By(cluster.PodsByClaim, claim) {
		add(object{"pod", p.Namespace, p.Name})
	}
	return all
}

// life reads what happened to objects, the newest last, as far as they and their events show it. It returns why the
// history is incomplete, or "", and whether the reason is a failed read.
func (p Plane) life(ctx context.Context, all []object) ([]moment, string, bool) {
	ctx, cancel := context.WithTimeout(ctx, lifeTime)
	defer cancel()
	var out []moment
	var failed error
	for _, o := range all {
		is, err := read(ctx, p.Client, o)
		failed = errors.Join(failed, err)
		if is == nil {
			continue
		}
		out = append(out, metaMoments(o, is)...)
		out = append(out, statusMoments(o, is)...)
		happened, err := events(ctx, p.Client, o, is.GetUID())
		failed = errors.Join(failed, err)
		out = append(out, happened...)
	}
	slices.SortStableFunc(out, func(a, b moment) int { return a.at.Compare(b.at) })
	out = slices.CompactFunc(out, func(a, b moment) bool { return a == b })
	untold := ""
	if n := len(out) - mostMoments; n > 0 {
		out, untold = out[n:], fmt.Sprintf("%d older entries are not shown.", n)
	}
	if failed != nil {
		untold = clean("Not all could be read: " + failed.Error())
	}
	return out, untold, failed != nil
}

// read returns an object as a whole; nil if it does not exist or its kind is not part of a volume's life.
func read(ctx context.Context, c kubernetes.Interface, o object) (metav1.Object, error) {
	var is metav1.Object
	var err error
	get := metav1.GetOptions{}
	switch o.kind {
	case "pvc":
		is, err = c.CoreV1().PersistentVolumeClaims(o.ns).Get(ctx, o.name, get)
	case "pv":
		is, err = c.CoreV1().PersistentVolumes().Get(ctx, o.name, get)
	case "pod":
		is, err = c.CoreV1().Pods(o.ns).Get(ctx, o.name, get)
	case "volumeattachment":
		is, err = c.StorageV1().VolumeAttachments().Get(ctx, o.name, get)
	case "node":
		is, err = c.CoreV1().Nodes().Get(ctx, o.name, get)
	case "csidriver":
		is, err = c.StorageV1().CSIDrivers().Get(ctx, o.name, get)
	case "storageclass":
		is, err = c.StorageV1().StorageClasses().Get(ctx, o.name, get)
	default:
		return nil, nil
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o.subject(), err)
	}
	return is, nil
}

func momentOf(at time.Time, o object, what, by string) moment {
	return moment{at: at, At: chain.Moment(at), Subject: clean(o.subject()), What: clean(what), By: clean(by)}
}

// metaMoments returns when an object was created, last changed by each program, and marked for deletion.
func metaMoments(o object, is metav1.Object) []moment {
	out := []moment{momentOf(is.GetCreationTimestamp().Time, o, "created", "the object")}
	for _, f := range is.GetManagedFields() {
		if f.Time == nil {
			continue
		}
		what := "last changed"
		if f.Subresource != "" {
			what = "last changed: " + f.Subresource
		}
		out = append(out, momentOf(f.Time.Time, o, what, f.Manager))
	}
	if d := is.GetDeletionTimestamp(); d != nil {
		asked := d.Add(-time.Duration(ptr.Deref(is.GetDeletionGracePeriodSeconds(), 0)) * time.Second)
		out = append(out, momentOf(asked, o, "its deletion was requested", "the object"))
	}
	return out
}

// condition is what all kinds of conditions have.
type condition struct {
	kind, status, reason, message string
	at                            metav1.Time
}

// statusMoments returns the entries of an object's status that have a time.
func statusMoments(o object, is metav1.Object) []moment {
	var out []moment
	for _, c := range conditions(is) {
		if !c.at.IsZero() {
			what := strings.TrimSpace(fmt.Sprintf("%s is %s. %s %s", c.kind, c.status, c.reason, c.message))
			out = append(out, momentOf(c.at.Time, o, what, "its condition"))
		}
	}
	switch is := is.(type) {
	case *corev1.PersistentVolume:
		if at := is.Status.LastPhaseTransitionTime; at != nil {
			out = append(out, momentOf(at.Time, o, "became "+string(is.Status.Phase), "its status"))
		}
	case *storagev1.VolumeAttachment:
		out = append(out, failures(o, "attaching", is.Status.AttachError)...)
		out = append(out, failures(o, "detaching", is.Status.DetachError)...)
	}
	return out
}

// failures returns the failure of an attachment, if it has one.
func failures(o object, what string, failed *storagev1.VolumeError) []moment {
	if failed == nil {
		return nil
	}
	m := momentOf(failed.Time.Time, o, what+" failed: "+failed.Message, "its status")
	m.Warning = true
	return []moment{m}
}

// conditions returns those of an object.
func conditions(is metav1.Object) []condition {
	var out []condition
	switch is := is.(type) {
	case *corev1.PersistentVolumeClaim:
		for _, c := range is.Status.Conditions {
			out = append(out, condition{string(c.Type), string(c.Status), c.Reason, c.Message, c.LastTransitionTime})
		}
	case *corev1.Pod:
		for _, c := range is.Status.Conditions {
			out = append(out, condition{string(c.Type), string(c.Status), c.Reason, c.Message, c.LastTransitionTime})
		}
	case *corev1.Node:
		for _, c := range is.Status.Conditions {
			out = append(out, condition{string(c.Type), string(c.Status), c.Reason, c.Message, c.LastTransitionTime})
		}
	}
	return out
}

// events returns the events about an object, but not about an earlier object of its name.
func events(ctx context.Context, c kubernetes.Interface, o object, uid types.UID) ([]moment, error) {
	kind := map[string]string{
		"pvc": "PersistentVolumeClaim", "pv": "PersistentVolume", "pod": "Pod", "volumeattachment": "VolumeAttachment",
		"node": "Node", "csidriver": "CSIDriver", "storageclass": "StorageClass",
	}[o.kind]
	about := fields.Set{"involvedObject.kind": kind, "involvedObject.name": o.name}.AsSelector().String()
	list, err := c.CoreV1().Events(cmp.Or(o.ns, metav1.NamespaceDefault)).List(ctx,
		metav1.ListOptions{FieldSelector: about, Limit: mostEvents})
	if err != nil {
		return nil, fmt.Errorf("read the events of %s: %w", o.subject(), err)
	}
	var out []moment
	for i := range list.Items {
		e := &list.Items[i]
		if e.InvolvedObject.UID != uid {
			continue
		}
		what := e.Reason + ": " + e.Message
		if e.Count > 1 {
			what = fmt.Sprintf("%s (%d times)", what, e.Count)
		}
		m := momentOf(gather.LastSeen(e), o, what, "an event of "+cmp.Or(e.Source.Component, e.ReportingController, "nobody"))
		m.Warning = e.Type == corev1.EventTypeWarning
		out = append(out, m)
	}
	return out, nil
}
