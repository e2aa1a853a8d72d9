//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
)

func (s *shell) statusCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, drivers, and the numbers of claims, volumes and attachments; check all",
		Long: `Show nodes, drivers, and the numbers of claims, volumes and attachments, the space
of the control plane, its newest backup and the certificate that expires first.

Exit codes: 0 all is well or waits for nobody, 1 error, 2 there is a problem.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.status(cmd.Context(), output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}

func (s *shell) status(ctx context.Context, output string) error {
	if err := knownOutput(output, "json", "yaml"); err != nil {
		return err
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	client, _, err := s.client()
	if err != nil {
		return err
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	told, err := newFacts(client).Summary(ctx, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	var space *room.Report
	if answer, ok := gather.Room(ctx, client); ok {
		space = &answer
	}
	report := reportOf(told, space, validities(ctx, config))
	report.Server, report.Version = config.Host, version.GitVersion
	printed, err := s.printStructured(output, report)
	if !printed {
		err = s.printStatus(ctx, client, told, report)
	}
	if err == nil && !report.Healthy {
		return errProblem
	}
	return err
}

// printStatus prints the status for people.
func (s *shell) printStatus(
	ctx context.Context, client kubernetes.Interface, told survey.Summary, report statusReport,
) error {
	fmt.Fprintf(s.Out, "API server  %s, Kubernetes API %s\n\n", report.Server, report.Version)
	printUnhealthy(s.Out, told)
	if err := printNodes(s.Out, told.Nodes); err != nil {
		return err
	}
	fmt.Fprintln(s.Out)
	printCounts(s.Out, told)
	printRoom(ctx, s.Out, client)
	s.printAgeing(report)
	printRestored(ctx, s.Out, client)
	s.printProblems(report)
	s.tellPlanted(ctx)
	return nil
}

func printNodes(out io.Writer, nodes []survey.NodeState) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATUS\tATTACHED\tIN-USE\tDRIVERS")
	for _, n := range nodes {
		status := "Ready"
		if !n.Ready {
			status = "NotReady"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", n.Name, status, n.Attached, n.InUse, driversOf(n))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range nodes {
		for _, message := range n.Unusable {
			fmt.Fprintf(out, "\n%s. See: volplane why node/%s\n", plainLine(message), n.Name)
		}
	}
	return nil
}

func driversOf(n survey.NodeState) string { return orNone(strings.Join(n.Drivers, ",")) }

func printCounts(out io.Writer, s survey.Summary) {
	fmt.Fprintf(out, "claims       %s\nvolumes      %s\nattachments  %s\n", tally(s.Claims), tally(s.Volumes),
		tally(s.Attachments))
	printUnresolved(out, s.Unresolved)
	if s.Unbound.Number > 0 {
		fmt.Fprintf(out, "\nNot every claim is bound. See: volplane why pvc/%s -n %s\n", s.Unbound.First.Subject,
			s.Unbound.First.Namespace)
	}
}

// printUnresolved counts the volumes whose creation has no known outcome for some
// time. It prints nothing if there are none or the user may not read the intents.
func printUnresolved(out io.Writer, u survey.Unresolved) {
	if u.Number > 0 {
		fmt.Fprintf(out, "unresolved   %d, the first for claim %s at driver %s since %s. See: volplane why -A\n",
			u.Number, u.Claim, u.Driver, timeText(u.Begun))
	}
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return chain.Moment(t)
}

// tally prints numbers by words, as in "2 Bound, 1 Pending".
func tally(numbers map[string]int) string {
	var parts []string
	for _, word := range slices.Sorted(maps.Keys(numbers)) {
		parts = append(parts, fmt.Sprintf("%d %s", numbers[word], word))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
