package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// keyVolume and keyJournal are the keys of a journal's ConfigMap.
const (
	keyVolume  = "volume"
	keyJournal = "journal"
)

// journalName returns the name of the ConfigMap for a volume. It is a hash, because the volume's
// name may be longer than a ConfigMap's can be.
func journalName(pv string) string {
	sum := sha256.Sum256([]byte(pv))
	return "flex-migration-" + hex.EncodeToString(sum[:8])
}

// load returns a volume's journal, or nil, and its resource version.
func (m *Migration) load(ctx context.Context, pv string) (*migrate.Journal, string, error) {
	cm, err := m.Client.CoreV1().ConfigMaps(volume.NamespaceSystem).Get(ctx, journalName(pv), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the journal of volume %s: %w", pv, err)
	}
	j, err := decode(cm)
	if err == nil && j.Volume.Name != pv {
		err = fmt.Errorf("journal %s/%s is for volume %s, not for %s", cm.Namespace, cm.Name, j.Volume.Name, pv)
	}
	return j, cm.ResourceVersion, err
}

func decode(cm *corev1.ConfigMap) (*migrate.Journal, error) {
	var j migrate.Journal
	if err := json.Unmarshal([]byte(cm.Data[keyJournal]), &j); err != nil {
		return nil, fmt.Errorf("journal %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	if j.Volume == nil || j.Volume.Spec.FlexVolume == nil || j.Volume.Name != cm.Data[keyVolume] {
		return nil, fmt.Errorf("journal %s/%s does not hold a FlexVolume", cm.Namespace, cm.Name)
	}
	if ref := j.Volume.Spec.ClaimRef; j.Claim != nil &&
		(ref == nil || ref.Namespace != j.Claim.Namespace || ref.Name != j.Claim.Name) {
		return nil, fmt.Errorf("journal %s/%s holds another claim than the volume's", cm.Namespace, cm.Name)
	}
	return &j, nil
}

// save creates a journal if version is empty, and otherwise replaces that version of it.
func (m *Migration) save(ctx context.Context, j *migrate.Journal, version string) error {
	data, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("journal of volume %s: %w", j.Volume.Name, err)
	}
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: journalName(j.Volume.Name), ResourceVersion: version, Labels: map[string]string{volume.LabelMigration: "true"},
		},
		Data: map[string]string{keyVolume: j.Volume.Name, keyJournal: string(data)},
	}
	maps := m.Client.CoreV1().ConfigMaps(volume.NamespaceSystem)
	if version == "" {
		_, err = maps.Create(ctx, cm, metav1.CreateOptions{})
	} else {
		_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the journal of volume %s: %w", j.Volume.Name, err)
	}
	return nil
}

func (m *Migration) deleteJournal(ctx context.Context, pv string) error {
	err := m.Client.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(ctx, journalName(pv), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the journal of volume %s: %w", pv, err)
	}
	return nil
}

// journals returns all journals, by the volume's name.
func (m *Migration) journals(ctx context.Context) (map[string]*migrate.Journal, error) {
	list, err := m.Client.CoreV1().ConfigMaps(volume.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: volume.LabelMigration})
	if err != nil {
		return nil, fmt.Errorf("read the journals: %w", err)
	}
	out := map[string]*migrate.Journal{}
	for i := range list.Items {
		j, err := decode(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out[j.Volume.Name] = j
	}
	return out, nil
}

// Unfinished returns the moves of a cluster that are not finished. It changes nothing.
func Unfinished(ctx context.Context, client kubernetes.Interface) ([]state.Move, error) {
	journals, err := (&Migration{Client: client}).journals(ctx)
	var out []state.Move
	for name, j := range journals {
		if j.Done {
			continue
		}
		m := state.Move{Volume: name, Back: j.Back}
		if j.Claim != nil {
			m.Claim = j.Claim.Namespace + "/" + j.Claim.Name
		}
		out = append(out, m)
	}
	return out, err
}
