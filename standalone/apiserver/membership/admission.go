package membership

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

// ErrGivenUp says that a control plane was given up as lost after it was admitted.
var ErrGivenUp = errors.New("this control plane was given up")

// admission is when the control plane of this process was admitted, and on which node it runs; "" if it was not yet.
type admission struct {
	node  string
	epoch identity.Epoch
}

// lostKey returns the key in Revoked of the epoch that began when a node was given up as lost. No node has that name.
func lostKey(node string) string { return "lost_" + node }

// Admit makes this process the control plane on a node, which was admitted in an epoch, unless it was given up since.
func (d *Members) Admit(ctx context.Context, node string, admitted identity.Epoch) error {
	a := admission{node, admitted}
	if err := d.check(ctx, a); err != nil {
		return err
	}
	d.mu.Lock()
	d.own = a
	d.mu.Unlock()
	return nil
}

// Admitted returns ErrGivenUp if the control plane of this process was given up. It asks the store, because what this
// process has in memory is old after a suspension.
func (d *Members) Admitted(ctx context.Context) error { return d.check(ctx, d.ownAdmission()) }

// Stay returns ErrGivenUp when the control plane of this process is given up, or nil when ctx ends.
func (d *Members) Stay(ctx context.Context) error {
	for ctx.Err() == nil {
		changed, own := d.changes(), d.ownAdmission()
		present, err := d.present(ctx, lostKey(own.node))
		if err == nil && !present.Counts(own.epoch) {
			err = own.refused()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}

func (d *Members) ownAdmission() admission {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.own
}

// check reads from the store whether a control plane was given up after its admission.
func (d *Members) check(ctx context.Context, a admission) error {
	all, err := d.client.CoreV1().ConfigMaps(volume.NamespaceSystem).Get(ctx, Revoked, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		all, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return fmt.Errorf("read which control planes were given up: %w", err)
	}
	present, err := epochIn(all, lostKey(a.node))
	if err == nil && !present.Counts(a.epoch) {
		err = a.refused()
	}
	return err
}

func (a admission) refused() error {
	return fmt.Errorf("%w with 'volplane delete node %s --lost', so its volumes are lost or in use elsewhere; what is "+
		"mounted on this host stays mounted. To bring it back, with what is left of its volumes, run 'volplane invite "+
		"--control-plane %s' on the host of another control plane, and start this one with --join FILE", ErrGivenUp, a.node,
		a.node)
}

// rejoins returns an error for a request that creates the Node of a control plane that was given up: it would be taken
// for a living one.
func (d *Members) rejoins(r *http.Request) error {
	who, _ := request.UserFrom(r.Context())
	about, _ := request.RequestInfoFrom(r.Context())
	if about == nil || about.Verb != "create" || about.Resource != "nodes" || who == nil ||
		!slices.Contains(who.GetGroups(), identity.PlanesGroup) {
		return nil
	}
	return d.Admitted(r.Context())
}
