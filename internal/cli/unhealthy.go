package cli

import (
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/volume"
)

// printUnhealthy says what is wrong with volumes and with the storage behind them. It prints nothing if nothing is.
func printUnhealthy(out io.Writer, r *gather.Facts) {
	var lines []string
	pods := filter(r.Pods, func(p *corev1.Pod) bool { return !cluster.Finished(p) && isUnhealthy(p) })
	if len(pods) > 0 {
		lines = append(lines, fmt.Sprintf("Pods with unhealthy volumes: %d. See: volplane why pod/%s -n %s", len(pods),
			pods[0].Name, pods[0].Namespace))
	}
	claims := filter(r.Claims, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.HealthStatus != nil && len(c.Status.HealthStatus.HealthConditions) > 0
	})
	if len(claims) > 0 {
		lines = append(lines, fmt.Sprintf("Claims with unhealthy volumes: %d. See: volplane why pvc/%s -n %s", len(claims),
			claims[0].Name, claims[0].Namespace))
	}
	for _, n := range r.CSINodes {
		for _, d := range n.Spec.Drivers {
			if b, bad := health.TellStorage(n, d.Name, nil); bad {
				lines = append(lines, fmt.Sprintf("%s. See: volplane why node/%s", plainLine(b.Message), n.Name))
			}
		}
	}
	for _, line := range lines {
		fmt.Fprintf(out, "%s\n\n", line)
	}
}

// isUnhealthy says whether the node agent or a kubelet reports an unhealthy volume of a Pod.
func isUnhealthy(p *corev1.Pod) bool {
	return cluster.IsFalse(cluster.PodCondition(p, volume.ConditionVolumesHealthy)) ||
		slices.ContainsFunc(p.Status.VolumeHealth, func(h corev1.PodVolumeHealth) bool {
			return len(h.HealthConditions) > 0
		})
}
