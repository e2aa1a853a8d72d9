package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

// revoke revokes all certificates and invitations of a node. When it returns without an error, no request with them is
// accepted any more or in flight.
func (d *Members) revoke(r *http.Request, body []byte) ([]byte, error) {
	var q identity.Revoke
	if err := read(body, &q, &q.Node); err != nil {
		return nil, err
	}
	if q.Lost && q.Node == d.ownAdmission().node {
		return nil, refuseWith(http.StatusConflict, "the control plane that answers runs on node %s itself, so it is not "+
			"lost: run the command on the host of another control plane", q.Node)
	}
	ctx, cancel := context.WithTimeout(r.Context(), syncLimit)
	defer cancel()
	next, err := d.startEpoch(ctx, q)
	if err != nil {
		return nil, err
	}
	var answer identity.Revoked
	if err := d.deleteInvitations(ctx, func(i identity.Invitation) bool {
		if i.Node == q.Node && i.Kind == identity.KindControlPlane {
			answer.ControlPlane, answer.Used = true, answer.Used || i.Key != ""
		}
		return i.Node == q.Node
	}); err != nil {
		return nil, err
	}
	err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		present, err := d.present(ctx, q.Node)
		return present >= next, err
	})
	if err != nil {
		return nil, fmt.Errorf("the revocation of node %s is stored, but not effective for every request yet; repeat it: %w",
			q.Node, err)
	}
	d.sweep()
	return json.Marshal(answer)
}

// startEpoch starts the next epoch of a node. That of its control plane starts with it if the node is lost.
func (d *Members) startEpoch(ctx context.Context, q identity.Revoke) (next identity.Epoch, err error) {
	maps := d.client.CoreV1().ConfigMaps(volume.NamespaceSystem)
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultBackoff, again, func() error {
		all, err := maps.Get(ctx, Revoked, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if missing {
			all, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Revoked}}, nil
		}
		if err != nil {
			return err
		}
		present, err := epochIn(all, q.Node)
		if err != nil {
			return refusal{http.StatusConflict, err}
		}
		next = present.Next(time.Now())
		if all.Data == nil {
			all.Data = map[string]string{}
		}
		all.Data[q.Node] = text(next)
		if q.Lost {
			all.Data[lostKey(q.Node)] = text(next)
		}
		if missing {
			_, err = maps.Create(ctx, all, metav1.CreateOptions{})
		} else {
			_, err = maps.Update(ctx, all, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("revoke node %s: %w", q.Node, err)
	}
	return next, nil
}

func text(e identity.Epoch) string { return strconv.FormatInt(int64(e), 10) }
