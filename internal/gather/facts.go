package gather

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Facts collects the objects that an explanation needs from the API.
type Facts struct {
	client kubernetes.Interface
	// mu guards the objects while several reads are in flight.
	mu sync.Mutex
	// asked are the objects of the question other than claims and volumes.
	asked []involved
	Options
	state.Objects
}

// Options have what the API does not show about volumes that are not served as CSI volumes.
type Options struct {
	// Bridge presents the volumes that a bridge serves as CSI volumes.
	Bridge kube.Translation
	// Moves reads the unfinished moves of volumes from one driver to another.
	Moves func(context.Context, kubernetes.Interface) ([]state.Move, error)
}

// New returns Facts of which nothing has been read yet.
func New(client kubernetes.Interface, o Options) *Facts {
	return &Facts{client: client, Options: o, Objects: state.Objects{Now: time.Now()}}
}

// All reads all objects of one namespace, or of all if ns is empty, and the volumes and
// nodes of the cluster.
func (r *Facts) All(ctx context.Context, ns string) error {
	err := r.together(ctx, r.claims(ns), r.volumes, r.attachments, r.pods(ns), r.cluster, r.making(ns), r.moves,
		r.warnings(ns), r.snapshots(ns), r.groups(ns))
	r.hosted()
	return err
}

// Everything reads what All reads, and what only questions about one object need.
func (r *Facts) Everything(ctx context.Context, ns string) error {
	all := func(ctx context.Context) error { return r.All(ctx, ns) }
	return r.together(ctx, r.ReadRoom, r.namespaces(ns), all)
}

// Summary returns what there is to say about a namespace, or about all of them if ns is empty. A control plane that
// has its objects in memory says it itself to users with the right to ask, as of a moment ago; otherwise all objects
// are read.
func (r *Facts) Summary(ctx context.Context, ns string) (survey.Summary, error) {
	var s survey.Summary
	if ask(ctx, r.client, survey.Path, map[string]string{survey.ParameterNamespace: ns}, &s) && !s.Now.IsZero() {
		return s, nil
	}
	return r.NewestSummary(ctx, ns)
}

// NewestSummary is Summary of all objects as the API has them now.
func (r *Facts) NewestSummary(ctx context.Context, ns string) (survey.Summary, error) {
	err := r.together(ctx, r.ReadRoom, func(ctx context.Context) error { return r.All(ctx, ns) })
	if err != nil {
		return survey.Summary{}, err
	}
	return survey.Summarize(r.Objects), nil
}

// Beside adds the objects that a control plane has in memory, and reads what else All reads.
func (r *Facts) Beside(ctx context.Context, known cluster.Lists) error {
	r.Lists = known
	return r.together(ctx, r.ReadRoom, r.leases, r.moves, r.making(metav1.NamespaceAll), r.warnings(metav1.NamespaceAll))
}

// Overview reads what is counted in a state of the whole cluster.
func (r *Facts) Overview(ctx context.Context) error {
	const every = metav1.NamespaceAll
	return r.together(ctx, r.nodes, r.csiNodes, r.claims(every), r.volumes, r.attachments, r.pods(every),
		r.making(every))
}

// Kept reads what drivers keep, make and serve: volumes, snapshots and groups, those that are begun, attachments and
// the Pods of a node. What the server does not have is not read; an error says that something could not be.
func (r *Facts) Kept(ctx context.Context, node string) error {
	pods := many(r, &r.Pods, "pods", "spec.nodeName="+node, r.client.CoreV1().Pods(metav1.NamespaceAll).List)
	if err := r.together(ctx, r.volumes, r.attachments, pods, r.making(metav1.NamespaceAll)); err != nil {
		return err
	}
	if r.MakingHidden {
		return errBegun
	}
	for _, contents := range []read{r.snapshotContents, r.groupContents} {
		if err := contents(ctx); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// errBegun says that the intents of provisioners were not read.
var errBegun = errors.New("what drivers were asked for and have not answered yet cannot be read: " +
	"ConfigMaps and Leases of all namespaces")

// ForNew reads what new claims and Pods in some namespaces depend on. They were added before.
func (r *Facts) ForNew(ctx context.Context, namespaces []string) error {
	// A claim that names no volume may get any.
	reads := []read{r.volumes}
	for _, ns := range namespaces {
		reads = append(reads, r.pods(ns), r.claims(ns))
	}
	return r.around(ctx, reads...)
}

// read adds objects of one request to a Facts.
type read func(context.Context) error

// hosted presents FlexVolumes as CSI volumes, as a control plane with a bridge does. In
// a cluster whose own controllers serve FlexVolumes, no Node has notes of a bridge,
// and FlexVolumes stay as they are.
func (r *Facts) hosted() {
	if !slices.ContainsFunc(r.Nodes, func(n *corev1.Node) bool { return n.Annotations[volume.AnnDriverNotes] != "" }) {
		return
	}
	for _, v := range r.Volumes {
		r.Bridge.Show(v)
	}
	for _, p := range r.Pods {
		r.Bridge.Show(p)
	}
}

// making reads the intents of provisioners, which may be in any namespace. Without the
// right to read them it reads none.
func (r *Facts) making(ns string) read {
	return func(ctx context.Context) error {
		logs, err := kube.ListIntents(ctx, r.client, metav1.NamespaceAll)
		r.MakingHidden = err != nil
		for _, log := range logs {
			begun, err := provision.ParseIntents(log)
			r.MakingHidden = r.MakingHidden || err != nil
			for _, in := range begun {
				if ns == metav1.NamespaceAll || ns == in.Claim.Namespace {
					r.Begun = append(r.Begun, in)
				}
			}
		}
		return nil
	}
}

// leases reads the Leases of programs, which may be in any namespace. Without the right
// to read them it reads none.
func (r *Facts) leases(ctx context.Context) (err error) {
	r.Leases, err = Every[*coordinationv1.Lease](ctx, "leases",
		metav1.ListOptions{LabelSelector: "!" + volume.LabelIntents},
		r.client.CoordinationV1().Leases(metav1.NamespaceAll).List)
	if apierrors.IsForbidden(err) {
		r.LeasesHidden, err = true, nil
	}
	return err
}

// ReadRoom reads whether the control plane refuses new objects for lack of space.
func (r *Facts) ReadRoom(ctx context.Context) error {
	if told, ok := Room(ctx, r.client); ok && told.Refuses {
		r.Full = &volume.Because{Reason: volume.Reason(told.Reason), Message: told.Message, Next: told.Next}
	}
	return nil
}

// warnings reads the warnings of a namespace, and those about volumes, which are in
// namespace default.
func (r *Facts) warnings(ns string) read {
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
func (r *Facts) warningsMatching(ns, selector string) read {
	return func(ctx context.Context) error {
		o := metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning + selector}
		events, err := Every[*corev1.Event](ctx, "events", o, r.client.CoreV1().Events(ns).List)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.Warnings = append(r.Warnings, events...)
		slices.SortStableFunc(r.Warnings, func(a, b *corev1.Event) int { return LastSeen(a).Compare(LastSeen(b)) })
		return err
	}
}

// LastSeen returns when an event was recorded last.
func LastSeen(e *corev1.Event) time.Time {
	return cmp.Or(e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
}

// Room reads how much space the database and the disk of a standalone control
// plane have. It returns false if the API server does not report it or the user may not
// read it.
func Room(ctx context.Context, client kubernetes.Interface) (diskspace.Report, bool) {
	var r diskspace.Report
	ok := ask(ctx, client, diskspace.Path, nil, &r)
	return r, ok && (r.Total > 0 || r.Members != nil)
}

// ask reads what a standalone control plane serves at a path of its own. It returns false if the API server is another
// one, does not know yet, or does not tell the user.
func ask(ctx context.Context, c kubernetes.Interface, path string, parameters map[string]string, into any) bool {
	q := c.Discovery().RESTClient().Get().AbsPath(path)
	for name, value := range parameters {
		q = q.Param(name, value)
	}
	data, err := q.Do(ctx).Raw()
	return err == nil && json.Unmarshal(data, into) == nil
}

// moves reads the unfinished moves. Without the right to read them it reads none.
func (r *Facts) moves(ctx context.Context) (err error) {
	if r.Options.Moves == nil {
		return nil
	}
	r.Objects.Moves, err = r.Options.Moves(ctx, r.client)
	return kube.Unless(apierrors.IsForbidden(err), err)
}
