package membership

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

const (
	secretPrefix = "volplane-invitation-"
	secretType   = corev1.SecretType("volplane.dev/invitation")
	// secretKey is the key of the invitation in a Secret.
	secretKey = "invitation"
	// labelInvitation is the label of every invitation.
	labelInvitation = "volplane.dev/invitation"
	sealPurpose     = "invitation"
)

var errUnknown = errors.New("the invitation does not exist")

// invite creates an invitation.
func (d *Members) invite(r *http.Request, body []byte) ([]byte, error) {
	var q identity.Invite
	if err := read(body, &q, &q.Node); err != nil {
		return nil, err
	}
	if err := q.Validate(); err != nil {
		return nil, refusal{http.StatusBadRequest, err}
	}
	ctx, now := r.Context(), time.Now()
	may := d.mayInviteNode
	if q.Kind == identity.KindControlPlane {
		may = d.mayInvitePlane
	}
	if err := may(ctx, q.Node); err != nil {
		return nil, err
	}
	present, err := d.present(ctx, q.Node)
	if err != nil {
		return nil, err
	}
	err = d.deleteInvitations(ctx, func(i identity.Invitation) bool { return !now.Before(i.Expires) })
	if err != nil {
		return nil, err
	}
	if err := d.find(ctx, q.Node); err != nil {
		return nil, err
	}
	t := identity.Token{Kind: q.Kind, Node: q.Node, ID: random(8), Secret: random(32)}
	data, err := d.encode(t.ID, identity.Invitation{
		Kind: q.Kind, Node: q.Node, Hash: identity.Hash([]byte(t.Secret)),
		Expires: now.Add(time.Duration(q.Seconds) * time.Second).UTC(), Epoch: present,
	})
	if err != nil {
		return nil, err
	}
	_, err = d.client.CoreV1().Secrets(volume.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secretPrefix + t.ID, Labels: map[string]string{labelInvitation: ""}},
		Type:       secretType, Data: map[string][]byte{secretKey: data},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("store invitation: %w", err)
	}
	return json.Marshal(identity.Invited{Token: t.String()})
}

// encode returns the stored form of an invitation.
func (d *Members) encode(id string, i identity.Invitation) ([]byte, error) {
	if i.Kind == identity.KindControlPlane {
		var err error
		if i.Seal, err = d.ca.Seal(sealPurpose, i.Sealed(id)); err != nil {
			return nil, err
		}
	}
	return json.Marshal(i)
}

func random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// stored returns an invitation and its Secret.
func (d *Members) stored(ctx context.Context, id string) (identity.Invitation, *corev1.Secret, error) {
	s, err := d.client.CoreV1().Secrets(volume.NamespaceSystem).Get(ctx, secretPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return identity.Invitation{}, nil, errUnknown
	}
	if err != nil {
		return identity.Invitation{}, nil, err
	}
	i, err := invitationIn(s)
	if err != nil || i.Kind != identity.KindControlPlane {
		return i, s, err
	}
	seal, err := d.ca.Seal(sealPurpose, i.Sealed(id))
	if err == nil && subtle.ConstantTimeCompare([]byte(seal), []byte(i.Seal)) != 1 {
		err = errUnknown
	}
	return i, s, err
}

func invitationIn(s *corev1.Secret) (i identity.Invitation, err error) {
	if s.Type != secretType {
		return i, errUnknown
	}
	if err := json.Unmarshal(s.Data[secretKey], &i); err != nil {
		return i, fmt.Errorf("invitation in Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return i, nil
}

// use marks an invitation as used for a public key. If two keys compete, only one can
// update the Secret.
func (d *Members) use(ctx context.Context, id string, kind identity.Kind, key string) (identity.Invitation, error) {
	var used identity.Invitation
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		i, s, err := d.stored(ctx, id)
		if err != nil {
			return err
		}
		present, err := d.present(ctx, i.Node)
		if err != nil {
			return err
		}
		if err := i.Open(present, time.Now()); err != nil {
			return refusal{http.StatusForbidden, err}
		}
		if used, err = i.Use(kind, key); err != nil {
			return refusal{http.StatusForbidden, err}
		}
		if used == i {
			return nil
		}
		if s.Data[secretKey], err = d.encode(id, used); err != nil {
			return err
		}
		_, err = d.client.CoreV1().Secrets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
		return err
	})
	if errors.Is(err, errUnknown) {
		err = refusal{http.StatusForbidden, err}
	}
	return used, err
}

// deleteInvitations deletes invitations.
func (d *Members) deleteInvitations(ctx context.Context, which func(identity.Invitation) bool) error {
	secrets := d.client.CoreV1().Secrets(volume.NamespaceSystem)
	all, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: labelInvitation})
	if err != nil {
		return fmt.Errorf("list invitations: %w", err)
	}
	for k := range all.Items {
		// An invalid invitation cannot be used.
		if i, err := invitationIn(&all.Items[k]); err == nil && !which(i) {
			continue
		}
		if err := secrets.Delete(ctx, all.Items[k].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete invitation: %w", err)
		}
	}
	return nil
}
