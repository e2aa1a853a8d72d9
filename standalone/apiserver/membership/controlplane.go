package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/planes"
)

// mayInvitePlane returns an error unless the user may invite a host of that name as a control plane. A right to the
// path suffices to invite nodes, but not for this.
func (d *Members) mayInvitePlane(ctx context.Context, name string) error {
	who, ok := request.UserFrom(ctx)
	facts := identity.Inviting{
		Name: name, Administrator: ok && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup), Prefix: d.plane.Prefix,
	}
	_, err := d.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get Node %s: %w", name, err)
	}
	facts.Known = err == nil
	err = facts.Check()
	switch {
	case errors.Is(err, identity.ErrNotAdministrator):
		return refusal{http.StatusForbidden, err}
	case err != nil:
		return refusal{http.StatusConflict, err}
	}
	return nil
}

// mayInviteNode returns an error if a control plane runs on the node with that name, because its agent is in that
// process.
func (d *Members) mayInviteNode(ctx context.Context, name string) error {
	n, err := d.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get Node %s: %w", name, err)
	case planes.Is(n):
		return refuseWith(http.StatusConflict, "a control plane runs on node %s, which needs no invitation: choose another "+
			"name for the other host", name)
	}
	return nil
}

// controlPlane hands out the keys to a host that is invited as a control plane.
func (d *Members) controlPlane(r *http.Request, body []byte) ([]byte, error) {
	const kind = identity.KindControlPlane
	who, ok := request.UserFrom(r.Context())
	if !ok {
		return nil, refuseWith(http.StatusForbidden, "the request has no user")
	}
	name, invited := strings.CutPrefix(who.GetName(), kind.Invited())
	id := who.GetExtra()[extraInvitation]
	if !invited || len(id) != 1 {
		return nil, refuseWith(http.StatusForbidden, "user %.80q has no invitation of a %s", who.GetName(), kind)
	}
	asked, key, err := requested(body)
	if err != nil {
		return nil, err
	}
	if asked != kind.Requested()+name {
		return nil, refuseWith(http.StatusForbidden, "the invitation is for %s %s, not for %.80q", kind, name, asked)
	}
	// The objects may have been moved since the invitation.
	if err := identity.CheckStore(d.plane.Prefix); err != nil {
		return nil, refusal{http.StatusForbidden, err}
	}
	used, err := d.spend(r.Context(), id[0], kind, key)
	if err != nil {
		return nil, err
	}
	keys, err := d.plane.Keys()
	if err != nil {
		return nil, fmt.Errorf("keys for %s %s: %w", kind, name, err)
	}
	keys.Epoch = used.Epoch
	slog.Warn("a host has fetched the keys of this control plane with an invitation", "invited", used.Node,
		"address", r.RemoteAddr, "expires", used.Expires)
	return json.Marshal(keys)
}
