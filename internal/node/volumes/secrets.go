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

// SecretValues returns the values of the Secrets that the journal says a driver received for a volume, or for all of
// its volumes if the id is empty. It fails if one of them can no longer be read.
func (p *shared) SecretValues(ctx context.Context, driver, volumeID string) ([]string, error) {
	var out []string
	read := map[decide.SecretRef]bool{}
	for _, r := range p.recordsOf(driver, volumeID) {
		if r.SecretsUnknown {
			return nil, fmt.Errorf("what volume %s was mounted with: %w", cmp.Or(r.Volume, r.Handle), errRecordLost)
		}
		for _, ref := range r.Secrets() {
			if read[ref] {
				continue
			}
			data, err := kube.SecretData(ctx, p.Client, &corev1.SecretReference{Namespace: ref.Namespace, Name: ref.Name})
			if err != nil {
				return nil, fmt.Errorf("what volume %s was mounted with: %w", r.Volume, err)
			}
			read[ref], out = true, append(out, slices.Collect(maps.Values(data))...)
		}
	}
	return out, nil
}

// recordsOf returns the record of a volume, if any, or those of all volumes of the driver if the id is empty.
func (p *shared) recordsOf(driver, volumeID string) []*decide.Record {
	if volumeID == "" {
		return slices.DeleteFunc(p.Journal.List(), func(r *decide.Record) bool { return r.Driver != driver })
	}
	if r := p.Journal.Get(volume.Key(driver, volumeID)); r != nil {
		return []*decide.Record{r}
	}
	return nil
}
