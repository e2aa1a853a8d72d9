package cli

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// showsUnused says whether the table of a target has the column that tells since when no Pod has wanted a claim.
func (g getOptions) showsUnused(t target) bool {
	return g.output == "wide" && t.mapping.Resource.Group == "" && t.mapping.Resource.Resource == "persistentvolumeclaims"
}

// addUnused adds the column, which the server's table does not have, to a table with whole objects.
func addUnused(table *metav1.Table, now time.Time) error {
	// Only the first event of a watch carries the columns.
	if len(table.ColumnDefinitions) > 0 {
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{
			Name: "Unused", Type: "string", Priority: 1, Description: "Since when no Pod has wanted the claim.",
		})
	}
	for i := range table.Rows {
		claim := &corev1.PersistentVolumeClaim{}
		if err := fromJSON(table.Rows[i].Object.Raw, claim); err != nil {
			return err
		}
		table.Rows[i].Cells = append(table.Rows[i].Cells, unusedFor(claim, now))
	}
	return nil
}

func unusedFor(claim *corev1.PersistentVolumeClaim, now time.Time) string {
	for _, c := range claim.Status.Conditions {
		if c.Type == corev1.PersistentVolumeClaimUnused && c.Status == corev1.ConditionTrue {
			return duration.HumanDuration(now.Sub(c.LastTransitionTime.Time))
		}
	}
	return "<none>"
}
