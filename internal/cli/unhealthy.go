//go:build linux

package cli

import (
	"fmt"
	"io"

	"volplane.dev/volplane/internal/explain/survey"
)

// printUnhealthy says what is wrong with volumes and with the storage behind them. It prints nothing if nothing is.
func printUnhealthy(out io.Writer, s survey.Summary) {
	if pods := s.UnhealthyPods; pods.Number > 0 {
		fmt.Fprintf(out, "Pods with unhealthy volumes: %d. See: volplane why pod/%s -n %s\n\n", pods.Number,
			pods.First.Subject, pods.First.Namespace)
	}
	if claims := s.UnhealthyClaims; claims.Number > 0 {
		fmt.Fprintf(out, "Claims with unhealthy volumes: %d. See: volplane why pvc/%s -n %s\n\n", claims.Number,
			claims.First.Subject, claims.First.Namespace)
	}
	for _, said := range s.Storage {
		fmt.Fprintf(out, "%s. See: volplane why node/%s\n\n", plainLine(said.Message), said.Node)
	}
}
