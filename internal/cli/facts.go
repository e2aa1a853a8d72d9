package cli

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// reading collects the objects that an explanation needs from the API.
type reading struct {
	client kubernetes.Interface
	// mu guards the objects while several reads are in flight.
	mu sync.Mutex
	// asked are the objects of the question other than claims and volumes.
	asked []involved
	state.Objects
}

func newReading(client kubernetes.Interface) *reading {
	return &reading{client: client, Objects: state.Objects{Now: time.Now()}}
}

// all reads all objects of one namespace, or of all if ns is empty, and the volumes and
// nodes of the cluster.
func (r *reading) all(ctx context.Context, ns string) error {
	err := r.together(ctx, r.claims(ns), r.volumes, r.attachments, r.pods(ns), r.cluster, r.making(ns), r.moves,
		r.warnings(ns))
	r.hosted()
	return err
}

// read adds objects of one request to a reading.
type read func(context.Context) error

// hosted presents FlexVolumes as CSI volumes, as a control plane with a bridge does. In
// a cluster whose own controllers serve FlexVolumes, no Node has notes of a bridge,
// and FlexVolumes stay as they are.
func (r *reading) hosted() {
	if !slices.ContainsFunc(r.Nodes, func(n *corev1.Node) bool { return n.Annotations[volume.AnnDriverNotes] != "" }) {
		return
	}
	t := translation()
	for _, v := range r.Volumes {
		t.Show(v)
	}
	for _, p := range r.Pods {
		t.Show(p)
	}
}

// making reads the intents of provisioners, which may be in any namespace. Without the
// right to read them it reads none.
func (r *reading) making(ns string) read {
	return func(ctx context.Context) error {
		logs, err := every[*corev1.ConfigMap](ctx, "intents", metav1.ListOptions{LabelSelector: volume.LabelIntents},
			r.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List)
		if apierrors.IsForbidden(err) {
			r.MakingHidden = true
			return nil
		}
		if err != nil {
			return err
		}
		for _, log := range logs {
			for _, text := range log.Data {
				if in, err := provision.ParseIntent(text); err == nil && (ns == metav1.NamespaceAll || ns == in.Claim.Namespace) {
					r.Begun = append(r.Begun, in)
				}
			}
		}
		return nil
	}
}

// leases reads the Leases of programs, which may be in any namespace. Without the right
// to read them it reads none.
func (r *reading) leases(ctx context.Context) (err error) {
	r.Leases, err = every[*coordinationv1.Lease](ctx, "leases", metav1.ListOptions{},
		r.client.CoordinationV1().Leases(metav1.NamespaceAll).List)
	if apierrors.IsForbidden(err) {
		r.LeasesHidden, err = true, nil
	}
	return err
}

// room reads whether the control plane refuses new objects for lack of space.
func (r *reading) room(ctx context.Context) error {
	if told, ok := readRoom(ctx, r.client); ok && told.Refuses {
		r.Full = &volume.Because{Reason: volume.Reason(told.Reason), Message: told.Message, Next: told.Next}
	}
	return nil
}

// warnings reads the warnings of a namespace, and those about volumes, which are in
// namespace default.
func (r *reading) warnings(ns string) read {
	return func(ctx context.Context) error {
		spaces := []string{ns}
		if ns != metav1.NamespaceAll && ns != metav1.NamespaceDefault {
			spaces = append(spaces, metav1.NamespaceDefault)
		}
		var reads []read
		for _, ns := range spaces {
			reads = append(reads, r.warningsMatching(ns, ""))
		}
		return r.together(ctx, reads...)
	}
}

// warningsMatching reads the warnings of one namespace that match a field selector.
func (r *reading) warningsMatching(ns, selector string) read {
	return func(ctx context.Context) error {
		o := metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning + selector}
		events, err := every[*corev1.Event](ctx, "events", o, r.client.CoreV1().Events(ns).List)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.Warnings = append(r.Warnings, events...)
		slices.SortStableFunc(r.Warnings, func(a, b *corev1.Event) int { return lastSeen(a).Compare(lastSeen(b)) })
		return err
	}
}

func lastSeen(e *corev1.Event) time.Time {
	return cmp.Or(e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
}
