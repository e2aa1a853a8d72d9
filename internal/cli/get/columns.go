package get

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// column is a column that the server's table does not have; of returns its cell from a whole object.
type column struct {
	metav1.TableColumnDefinition
	of func(object []byte) (string, error)
}

// columns returns the columns that are added to the table of a target: which claims a Pod uses, where they are mounted
// and on which node, and since when no Pod has wanted a claim.
func (g getOptions) columns(t objects.Target) []column {
	if t.Mapping.Resource.Group != "" {
		return nil
	}
	wide := g.output == "wide"
	switch t.Mapping.Resource.Resource {
	case "persistentvolumeclaims":
		if wide {
			return []column{unusedColumn()}
		}
	case "pods":
		out := []column{podColumn("Claims", "The claims that the Pod uses.", func(p *corev1.Pod) string {
			return strings.Join(cluster.ClaimNames(p), ",")
		}), podColumn("Paths", "Where the volumes are mounted.", pathsOf)}
		if !wide {
			out = append(out, podColumn("Node", "The node on which they are.", func(p *corev1.Pod) string {
				return p.Spec.NodeName
			}))
		}
		return out
	}
	return nil
}

func podColumn(name, says string, of func(*corev1.Pod) string) column {
	return column{
		TableColumnDefinition: metav1.TableColumnDefinition{Name: name, Type: "string", Description: says},
		of: func(object []byte) (string, error) {
			pod := &corev1.Pod{}
			if err := fromJSON(object, pod); err != nil {
				return "", err
			}
			return shell.OrNone(of(pod)), nil
		},
	}
}

func unusedColumn() column {
	return column{
		TableColumnDefinition: metav1.TableColumnDefinition{
			Name: "Unused", Type: "string", Priority: 1, Description: "Since when no Pod has wanted the claim.",
		},
		of: func(object []byte) (string, error) {
			claim := &corev1.PersistentVolumeClaim{}
			if err := fromJSON(object, claim); err != nil {
				return "", err
			}
			return unusedFor(claim, time.Now()), nil
		},
	}
}

func unusedFor(claim *corev1.PersistentVolumeClaim, now time.Time) string {
	for _, c := range claim.Status.Conditions {
		if c.Type == corev1.PersistentVolumeClaimUnused && c.Status == corev1.ConditionTrue {
			return duration.HumanDuration(now.Sub(c.LastTransitionTime.Time))
		}
	}
	return "<none>"
}

// addColumns adds columns to a table with whole objects.
func addColumns(table *metav1.Table, columns []column) error {
	// Only the first event of a watch carries the definitions.
	first := len(table.ColumnDefinitions) > 0
	for _, c := range columns {
		if first {
			table.ColumnDefinitions = append(table.ColumnDefinitions, c.TableColumnDefinition)
		}
		for i := range table.Rows {
			cell, err := c.of(table.Rows[i].Object.Raw)
			if err != nil {
				return err
			}
			table.Rows[i].Cells = append(table.Rows[i].Cells, cell)
		}
	}
	return nil
}

// pathsOf returns the paths of a Pod as one word for a table.
func pathsOf(p *corev1.Pod) string {
	if at := volume.AskedPath(p.Annotations); at != "" {
		return at
	}
	paths := cluster.MountPaths(p)
	return strings.Join(slices.Sorted(maps.Values(paths)), ",")
}
