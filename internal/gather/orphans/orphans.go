package orphans

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Records reads what the bundled driver stores about its volumes on this host.
type Records interface {
	// Name returns the name with which a volume was created; "" if it is not known.
	Name(handle string) string
	// Contents returns what is on a volume.
	Contents(ctx context.Context, handle string) decide.Contents
}

// Search compares drivers and the API.
type Search struct {
	// Client is the client of the API; if FlexVolumes are to be found, one that translates them.
	Client kubernetes.Interface
	// Records is nil if the bundled driver's pool is not on this host.
	Records Records
}

// Found is the result for one driver.
type Found struct {
	Driver string
	decide.Plan
}

// Find returns the volumes of the driver at a socket, and the objects of the API, that have no
// counterpart. The error wraps ErrCannotList if the driver cannot list its volumes. It may be
// repeated.
func (s *Search) Find(ctx context.Context, socket string) (Found, error) {
	d, err := dial(ctx, socket)
	if err != nil {
		return Found{}, err
	}
	defer d.Close()
	f, err := s.gather(ctx, d)
	if err != nil {
		return Found{Driver: d.Name}, err
	}
	return Found{Driver: d.Name, Plan: decide.Find(f)}, nil
}

// gather reads everything in the order that decide.Facts requires.
func (s *Search) gather(ctx context.Context, d *csi.Driver) (decide.Facts, error) {
	f := decide.Facts{Driver: d.Name, Own: segmentOf(ctx, d), NodeIDs: map[string]bool{}}
	var err error
	for _, read := range []func() error{
		func() error { f.Before, err = s.volumes(ctx); return err },
		func() error { f.First, err = s.list(ctx, d); return err },
		func() error { return s.making(ctx, &f) },
		func() error { f.After, err = s.volumes(ctx); return err },
		func() error { return s.nodes(ctx, &f) },
		func() error { f.Second, err = list(ctx, d); return err },
	} {
		if err := read(); err != nil {
			return decide.Facts{}, err
		}
	}
	return f, nil
}

func (s *Search) list(ctx context.Context, d *csi.Driver) ([]decide.Entry, error) {
	all, err := list(ctx, d)
	if err != nil || s.Records == nil || d.Name != volume.LocalDriver {
		return all, err
	}
	for i := range all {
		all[i].Name = s.Records.Name(all[i].Handle)
	}
	return all, nil
}

func (s *Search) volumes(ctx context.Context) ([]*corev1.PersistentVolume, error) {
	all, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	return kube.Pointers(all.Items), nil
}

// making reads the intents of volplane's provisioners and the unbound claims: a volume without an
// object may be one that is just being created.
func (s *Search) making(ctx context.Context, f *decide.Facts) error {
	logs, err := kube.ListIntents(ctx, s.Client, metav1.NamespaceAll)
	// Where it is not known which volumes are being created, none may be touched.
	f.Hidden = err != nil
	for _, log := range logs {
		begun, err := provision.ParseIntents(log)
		f.Hidden = f.Hidden || err != nil
		f.Intents = append(f.Intents, begun...)
	}
	claims, err := s.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	f.Claims = kube.Pointers(claims.Items)
	return nil
}

func (s *Search) nodes(ctx context.Context, f *decide.Facts) error {
	all, err := s.Client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list CSINodes: %w", err)
	}
	for i := range all.Items {
		for _, d := range all.Items[i].Spec.Drivers {
			if d.Name == f.Driver {
				f.NodeIDs[d.NodeID] = true
			}
		}
	}
	return nil
}

// ErrRefused says that a volume cannot be adopted; the message has the reason.
var ErrRefused = errors.New("refused")

// Adopted is the result of an adoption.
type Adopted struct {
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Changed and Claimed say whether the PersistentVolume and the claim were written.
	Changed, Claimed bool
	Because          volume.Because
}

// Adopt adopts a volume of the driver at a socket. It may be repeated, also after a crash: existing
// objects are kept. With dryRun the API server checks all requests and stores nothing.
func (s *Search) Adopt(ctx context.Context, socket string, w decide.Request, dryRun bool) (Adopted, error) {
	d, err := dial(ctx, socket)
	if err != nil {
		return Adopted{}, err
	}
	defer d.Close()
	if d.Name != w.Driver {
		return Adopted{}, fmt.Errorf("the driver at %s is %s, not %s: %w", socket, d.Name,
			decide.Printable(w.Driver), ErrRefused)
	}
	f := decide.AdoptionFacts{Request: w}
	if f.Facts, err = s.gather(ctx, d); err != nil {
		return Adopted{}, err
	}
	if err := s.gatherAdoption(ctx, &f); err != nil {
		return Adopted{}, err
	}
	a, because := decide.Adopt(f)
	if a.Object == nil {
		return Adopted{}, fmt.Errorf("%s: %w (%s)", because.Message, ErrRefused, because.Reason)
	}
	return s.apply(ctx, f, a, because, dryRun)
}

func (s *Search) gatherAdoption(ctx context.Context, f *decide.AdoptionFacts) error {
	w := f.Request
	if s.Records != nil && w.Driver == volume.LocalDriver {
		f.Contents = s.Records.Contents(ctx, w.Handle)
	}
	class, err := s.Client.StorageV1().StorageClasses().Get(ctx, volume.DefaultClass, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get class: %w", err)
	}
	f.Default = err == nil && class.Provisioner == volume.LocalDriver
	if w.Claim.Name == "" {
		return nil
	}
	claim, err := s.Client.CoreV1().PersistentVolumeClaims(w.Claim.Namespace).Get(ctx, w.Claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get claim %s: %w", w.Claim, err)
	}
	f.Claim = claim
	return nil
}

// apply writes the PersistentVolume before the claim, which would be given another volume
// otherwise.
func (s *Search) apply(
	ctx context.Context, f decide.AdoptionFacts, a decide.Adoption, because volume.Because, dryRun bool,
) (Adopted, error) {
	out := Adopted{Volume: a.Object, Claim: f.Claim, Because: because}
	var mode []string
	if dryRun {
		mode = []string{metav1.DryRunAll}
	}
	const manager = "volplane"
	var err error
	switch {
	case a.Create != nil:
		out.Volume, err = s.Client.CoreV1().PersistentVolumes().Create(ctx, a.Create,
			metav1.CreateOptions{DryRun: mode, FieldManager: manager})
		out.Changed = true
	case a.Link != nil:
		out.Volume, err = s.Client.CoreV1().PersistentVolumes().Update(ctx, a.Link,
			metav1.UpdateOptions{DryRun: mode, FieldManager: manager})
		out.Changed = true
	}
	if err != nil {
		return Adopted{}, fmt.Errorf("write pv/%s: %w", a.Object.Name, err)
	}
	if a.Claim == nil {
		return out, nil
	}
	claim, err := s.Client.CoreV1().PersistentVolumeClaims(a.Claim.Namespace).Create(ctx, a.Claim,
		metav1.CreateOptions{DryRun: mode, FieldManager: manager})
	if err != nil {
		return out, fmt.Errorf("create claim %s/%s for pv/%s: %w", a.Claim.Namespace, a.Claim.Name, a.Object.Name, err)
	}
	out.Claim, out.Claimed = claim, true
	return out, nil
}
