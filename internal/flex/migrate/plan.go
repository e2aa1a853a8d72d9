package migrate

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/migrate"
)

// Item describes one volume that may be moved, or was moved.
type Item struct {
	// Name is the volume's name. Claim is that of its claim, "namespace/name", or empty.
	Name, Claim string
	// From is the name of the Flex driver, To that of the CSI driver; empty if there is none.
	From, To string
	// Back says that the volume is being moved back.
	Back bool
	// Step is the next step.
	Step migrate.Step
	// Volume and MovedClaim are the objects after the move; nil if the volume cannot be moved.
	Volume     *corev1.PersistentVolume
	MovedClaim *corev1.PersistentVolumeClaim
}

// Plan returns what Run would do with a volume. It changes nothing and may be repeated.
func (m *Migration) Plan(ctx context.Context, pv string) (Item, error) {
	step, f, _, err := m.next(ctx, pv, false)
	if err != nil {
		return Item{}, err
	}
	return item(f, step), nil
}

// Begun returns the volumes that were moved, wholly or in part, sorted by name.
func (m *Migration) Begun(ctx context.Context) ([]Item, error) {
	journals, err := m.journals(ctx)
	if err != nil {
		return nil, err
	}
	var out []Item
	for _, name := range slices.Sorted(maps.Keys(journals)) {
		f, err := m.gather(ctx, name, journals[name])
		if err != nil {
			return nil, err
		}
		out = append(out, item(f, migrate.Next(f)))
	}
	return out, nil
}

// Unfinished returns the names of the volumes that are being moved to the bridge: their
// PersistentVolume may not exist at the moment.
func (m *Migration) Unfinished(ctx context.Context) ([]string, error) {
	journals, err := m.journals(ctx)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(journals, func(_ string, j *migrate.Journal) bool { return j.Back || j.Done })
	return slices.Sorted(maps.Keys(journals)), nil
}

func item(f migrate.Facts, step migrate.Step) Item {
	i := Item{Name: f.Name, Step: step}
	pv, claim := f.Volume, f.Claim
	if f.Journal != nil {
		pv, claim, i.Back = f.Journal.Volume, f.Journal.Claim, f.Journal.Back
	}
	if pv == nil || pv.Spec.FlexVolume == nil {
		return i
	}
	i.From = pv.Spec.FlexVolume.Driver
	if ref := pv.Spec.ClaimRef; ref != nil {
		i.Claim = ref.Namespace + "/" + ref.Name
	}
	if target, moved, err := migrate.Target(pv, claim); err == nil {
		i.To, i.Volume, i.MovedClaim = target.Spec.CSI.Driver, target, moved
	}
	return i
}
