package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/dryrun"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
)

// simulation holds the objects of a dry run together with those of the cluster.
type simulation struct {
	*gather.Facts
	client  kubernetes.Interface
	objects *objects.Client
	// spaces are the namespaces that the file would create.
	spaces map[string]bool
	// refused are the answers about objects that the API server refuses.
	refused []chain.Chain
	// candidates are the objects that would be created.
	candidates []candidate
	// notes say what the answer leaves out.
	notes []string
}

// candidate is an object that would be created.
type candidate struct {
	kind     string
	ns, name string
}

// whyDryRun explains what would happen if the objects of a file were created.
func whyDryRun(ctx context.Context, s *shell.Shell, q question) error {
	docs, err := objects.Read(s, q.file, false)
	if err != nil {
		return err
	}
	o, err := objects.Of(s)
	if err != nil {
		return err
	}
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	r := &simulation{Facts: shell.Facts(client), client: client, objects: o, spaces: map[string]bool{}}
	for _, doc := range docs {
		if doc.GetKind() == "Namespace" {
			r.spaces[doc.GetName()] = true
		}
	}
	for i, doc := range docs {
		if err := r.addObject(ctx, doc, i); err != nil {
			return err
		}
	}
	for _, n := range r.notes {
		fmt.Fprintln(s.Err, "note:", n)
	}
	if len(r.candidates)+len(r.refused) == 0 {
		return fmt.Errorf("%s holds nothing that can be explained: use %s", q.file, strings.Join(gather.Names(), ", "))
	}
	if err := r.readDependencies(ctx, ns); err != nil {
		return err
	}
	return reportAnswers(s, r, ns, q)
}

// reportAnswers prints the answers, and returns shell.ErrProblem unless all objects would be
// served.
func reportAnswers(s *shell.Shell, r *simulation, ns string, q question) error {
	served, chains := true, r.answers()
	for i, c := range chains {
		if i > 0 && q.output == "" {
			fmt.Fprintln(s.Out)
		}
		served = served && dryrun.Served(c)
		if q.output == "" {
			if err := chain.Render(s.Out, c, nil); err != nil {
				return err
			}
		}
	}
	if q.output != "" {
		out := make([]explanation, 0, len(chains))
		for _, c := range chains {
			out = append(out, explanationOf(since.TimesOf(r.Objects), ns, c))
		}
		if err := s.PrintValue(map[string]any{"answers": out}, q.output); err != nil {
			return err
		}
	}
	if !served {
		return shell.ErrProblem
	}
	return nil
}

// addObject has the API server validate and default an object if the user may create it,
// and adds it to the simulation.
func (r *simulation) addObject(ctx context.Context, doc *unstructured.Unstructured, n int) error {
	m, err := r.objects.Mapping(doc.GroupVersionKind())
	if err != nil {
		return err
	}
	k, known := gather.KindNamed(m.GroupVersionKind.Kind)
	if !known || k.Group != m.GroupVersionKind.Group {
		r.notes = append(r.notes, objects.PrintedType(m)+"/"+doc.GetName()+" is omitted: why does not know its kind")
		return nil
	}
	ns := r.objects.SetNamespace(m, doc)
	subject := k.Name + "/" + doc.GetName() + doc.GetGenerateName()
	doc.SetUID(types.UID(fmt.Sprintf("dry-run-%d", n)))
	switch made, err := r.created(ctx, m, doc, ns); {
	case apierrors.IsAlreadyExists(err):
		r.refused = append(r.refused, dryrun.Refused(subject, "it already exists; ask about it without --dry-run"))
		return nil
	case err != nil && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		r.refused = append(r.refused, dryrun.Refused(subject, err.Error()))
		return nil
	case err != nil:
		return err
	case made != nil:
		made.SetUID(doc.GetUID())
		doc = made
	}
	if doc.GetName() == "" {
		doc.SetName(doc.GetGenerateName() + "new")
	}
	return r.put(k, doc)
}

// created returns the object that the API server would create; nil if the server
// cannot be asked.
func (r *simulation) created(ctx context.Context, m *meta.RESTMapping, doc *unstructured.Unstructured,
	ns string,
) (*unstructured.Unstructured, error) {
	if r.spaces[ns] {
		return nil, nil // the namespace does not exist yet
	}
	review, err := r.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "create", Namespace: ns, Group: m.Resource.Group, Version: m.Resource.Version, Resource: m.Resource.Resource,
			}},
		}, metav1.CreateOptions{})
	if err == nil && !review.Status.Allowed {
		r.notes = append(r.notes, "you may not create "+objects.PrintedType(m)+"/"+doc.GetName()+
			", so the API server was not asked to validate it")
		return nil, nil
	}
	plain := doc.DeepCopy()
	unstructured.RemoveNestedField(plain.Object, "metadata", "uid")
	o := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: doors.FieldManager}
	return r.objects.At(m, ns).Create(ctx, plain, o)
}

// put adds an object with the status that it would have after its creation.
func (r *simulation) put(k gather.Kind, doc *unstructured.Unstructured) error {
	doc.SetCreationTimestamp(metav1.NewTime(r.Now))
	var err error
	switch k.Name {
	case "pvc":
		err = putAs(r, &r.Claims, doc, func(c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		})
	case "pod":
		err = putAs(r, &r.Pods, doc, func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	case "pv":
		err = putAs(r, &r.Volumes, doc, func(v *corev1.PersistentVolume) {
			v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}
		})
	case "storageclass":
		err = putAs(r, &r.Classes, doc, func(c *storagev1.StorageClass) {
			c.ReclaimPolicy = cmpPtr(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			c.VolumeBindingMode = cmpPtr(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		})
	case "csidriver":
		err = putAs(r, &r.Drivers, doc, func(*storagev1.CSIDriver) {})
	case "namespace":
		err = putAs(r, &r.Namespaces, doc, func(*corev1.Namespace) {})
	default:
		r.notes = append(r.notes, k.Name+"/"+doc.GetName()+" is omitted: users do not create such objects")
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s/%s: %w", k.Name, doc.GetName(), err)
	}
	r.candidates = append(r.candidates, candidate{k.Name, doc.GetNamespace(), doc.GetName()})
	return nil
}

// putAs adds an object of a type after it was completed.
func putAs[T any, P interface {
	*T
	kube.Object
}](r *simulation, to *[]P, doc *unstructured.Unstructured, complete func(P)) error {
	o := P(new(T))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(doc.Object, o); err != nil {
		return err
	}
	complete(o)
	gather.Add(r.Facts, to, o)
	return nil
}

// cmpPtr returns a pointer to a copy of *p, or to other if p is nil.
func cmpPtr[T any](p *T, other T) *T { return ptr.To(ptr.Deref(p, other)) }

// readDependencies reads the objects on which the candidates depend, and adds the
// candidates to them.
func (r *simulation) readDependencies(ctx context.Context, ns string) error {
	own := r.Objects
	spaces := []string{ns}
	for _, t := range r.candidates {
		if t.ns != "" && !slices.Contains(spaces, t.ns) {
			spaces = append(spaces, t.ns)
		}
	}
	if err := r.ForNew(ctx, spaces); err != nil {
		return err
	}
	for _, c := range own.Claims {
		if _, named := bind.ClassOf(c); !named {
			if d := bind.DefaultClass(r.Classes); d != nil {
				c.Spec.StorageClassName = &d.Name
			}
		}
	}
	r.Objects = dryrun.Predict(r.Objects, keys(own.Claims)...)
	return nil
}

func keys(claims []*corev1.PersistentVolumeClaim) []string {
	var out []string
	for _, c := range claims {
		out = append(out, cluster.Key(c))
	}
	return out
}

// answers explains the refused objects, and then the others. A claim that a new Pod uses
// is explained with the Pod. A class, a driver or a volume is explained only if the
// file has neither claims nor Pods.
func (r *simulation) answers() []chain.Chain {
	out := slices.Clone(r.refused)
	covered := map[string]bool{}
	for _, p := range r.Pods {
		for _, name := range cluster.ClaimNames(p) {
			if slices.Contains(r.candidates, candidate{"pod", p.Namespace, p.Name}) {
				covered[p.Namespace+"/"+name] = true
			}
		}
	}
	users := slices.ContainsFunc(r.candidates, func(t candidate) bool { return t.kind == "pvc" || t.kind == "pod" })
	for _, t := range r.candidates {
		k, known := gather.KindNamed(t.kind)
		if !known || t.kind == "pvc" && covered[t.ns+"/"+t.name] || users && !k.Namespaced {
			continue
		}
		if c, ok := k.Tell(why.Of(r.Objects), t.ns, t.name); ok {
			out = append(out, c)
		}
	}
	return out
}

// errDryRun refuses a file without --dry-run.
var errDryRun = errors.New("-f needs --dry-run: why never creates anything")
