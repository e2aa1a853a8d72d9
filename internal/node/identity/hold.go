package identity

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// ErrHeld says that nothing is taken away until an administrator has looked.
var ErrHeld = errors.New("nothing is taken away")

// held fails while the API is one that was restored from a backup and nobody has
// said that what it does not know of may go. It is asked live: a cache may be of
// the API as it was before.
func (o *object) held(ctx context.Context) error {
	restored, err := o.client.CoreV1().ConfigMaps(volume.NamespaceSystem).Get(ctx, volume.ConfigRestored,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask whether the API was restored from a backup: %w", err)
	}
	return fmt.Errorf("%w: the API was restored from a backup of %.40q, and what was made since may be in use; look at "+
		"volplane orphans and at the Pods, then run volplane restore --accept", ErrHeld, restored.Data[volume.RestoredMade])
}
