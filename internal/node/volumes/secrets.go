package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

var errRecordLost = errors.New("the journal's record of it was lost, and its object is gone")

// SecretValues returns the values of the Secrets that the journal says a driver received for a volume.
// It fails if one of them can no longer be read.
func (p *shared) SecretValues(ctx context.Context, driver, volumeID string) ([]string, error) {
	r := p.Journal.Get(volume.Key(driver, volumeID))
	if r == nil {
		return nil, nil
	}
	if r.SecretsUnknown {
		return nil, fmt.Errorf("what volume %s was mounted with: %w", cmp.Or(r.Volume, r.Handle), errRecordLost)
	}
	var out []string
	for _, ref := range []*decide.SecretRef{r.StageSecret, r.PublishSecret, r.GrowSecret} {
		if ref == nil {
			continue
		}
		data, err := kube.SecretData(ctx, p.Client, &corev1.SecretReference{Namespace: ref.Namespace, Name: ref.Name})
		if err != nil {
			return nil, fmt.Errorf("what volume %s was mounted with: %w", r.Volume, err)
		}
		out = append(out, slices.Collect(maps.Values(data))...)
	}
	return out, nil
}
