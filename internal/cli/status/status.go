package status

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

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
)

func printRoom(ctx context.Context, out io.Writer, client kubernetes.Interface) {
	r, ok := gather.Room(ctx, client)
	if !ok {
		return
	}
	used := room.Text(r.Used)
	if r.Limit > 0 { // an older etcd of others does not say
		used += " of " + room.Text(r.Limit)
	}
	fmt.Fprintf(out, "database     %s used, file of %s\n", used, room.Text(r.Size))
	if m := r.Members; m != nil {
		fmt.Fprintf(out, "store        an etcd that others run, keys below %s; %s\n", m.Prefix,
			room.Members{All: m.All, Answer: m.Answer}.Answers())
	} else {
		fmt.Fprintf(out, "disk         %s of %s free, %s in reserve\n", room.Text(r.Free), room.Text(r.Total),
			room.Text(r.Reserve))
	}
	if r.Refuses {
		fmt.Fprintf(out, "\n%s: %s\n", r.Reason, r.Message)
	}
}

func statusCommand(s *shell.Shell) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, drivers, and the numbers of claims, volumes and attachments; check all",
		Long: `Show nodes, drivers, and the numbers of claims, volumes and attachments, the space
of the control plane, its newest backup and the certificate that expires first.

Exit codes: 0 all is well or waits for nobody, 1 error, 2 there is a problem.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}

func run(ctx context.Context, s *shell.Shell, output string) error {
	if err := shell.KnownOutput(output, "json", "yaml"); err != nil {
		return err
	}
	config, err := s.Config()
	if err != nil {
		return err
	}
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	told, err := shell.Facts(client).Summary(ctx, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	var space *room.Report
	if answer, ok := gather.Room(ctx, client); ok {
		space = &answer
	}
	report := reportOf(told, space, validities(ctx, config))
	report.Server, report.Version = config.Host, version.GitVersion
	printed, err := s.PrintStructured(output, report)
	if !printed {
		err = printStatus(ctx, s, client, told, report)
	}
	if err == nil && !report.Healthy {
		return shell.ErrProblem
	}
	return err
}

// printStatus prints the status for people.
func printStatus(
	ctx context.Context, s *shell.Shell, client kubernetes.Interface, told survey.Summary, report statusReport,
) error {
	fmt.Fprintf(s.Out, "API server  %s, Kubernetes API %s\n\n", report.Server, report.Version)
	printUnhealthy(s.Out, told)
	if err := printNodes(s.Out, told.Nodes); err != nil {
		return err
	}
	fmt.Fprintln(s.Out)
	printCounts(s.Out, told)
	printRoom(ctx, s.Out, client)
	printAgeing(s, report)
	shell.PrintRestored(ctx, s.Out, client)
	printProblems(s, report)
	s.TellPlanted(ctx)
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
			fmt.Fprintf(out, "\n%s. See: volplane why node/%s\n", shell.PlainLine(message), n.Name)
		}
	}
	return nil
}

func driversOf(n survey.NodeState) string { return shell.OrNone(strings.Join(n.Drivers, ",")) }

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
		fmt.Fprintf(out, "%s. See: volplane why node/%s\n\n", shell.PlainLine(said.Message), said.Node)
	}
}
