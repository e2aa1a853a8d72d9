package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/process/options"
)

func printRoom(ctx context.Context, out io.Writer, client kubernetes.Interface) {
	r, ok := gather.Room(ctx, client)
	if !ok {
		return
	}
	used := diskspace.Text(r.Used)
	if r.Limit > 0 { // an older etcd of others does not say
		used += " of " + diskspace.Text(r.Limit)
	}
	fmt.Fprintf(out, "database     %s used, file of %s\n", used, diskspace.Text(r.Size))
	if m := r.Members; m != nil {
		fmt.Fprintf(out, "store        an etcd that others run, keys below %s; %s\n", m.Prefix,
			diskspace.Members{All: m.All, Answer: m.Answer}.Answers())
	} else {
		fmt.Fprintf(out, "disk         %s of %s free, %s in reserve\n", diskspace.Text(r.Free), diskspace.Text(r.Total),
			diskspace.Text(r.Reserve))
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

Exit codes: 0 all is well or only needs time, 1 error, 2 there is a problem.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}

func run(ctx context.Context, s *shell.Shell, output string) error {
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
	var space *diskspace.Report
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
	s.PrintPlanted(ctx)
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

func pageCommand(s *shell.Shell) *cobra.Command {
	var link bool
	c := &cobra.Command{
		Use:   "page",
		Short: "Print a link to a page that shows what waits and why, drivers, and volumes by node",
		Long: `Print a link that opens a page in a browser on the host of the control plane. The
page shows what waits and why, volumes by node, drivers, and the life of each
volume, and follows what changes. It changes nothing.

The link works once and within a few minutes; after that the browser may look
for a day. Whoever has the link sees the whole control plane, but no Secrets, so
do not give it to a program as an argument: all users of the host see those.`,
		Example: `  volplane page`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return page(cmd.Context(), s, link) },
	}
	c.Flags().BoolVar(&link, "print-url", false, "print the link only")
	return c
}

func page(ctx context.Context, s *shell.Shell, linkOnly bool) error {
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	data, err := client.Discovery().RESTClient().Post().AbsPath(options.PagePath).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return errors.New("this API server has no page: it is not a volplane control plane, or one that was started with " +
			"--page=''; 'volplane status' and 'volplane why -A' show the same")
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the page shows all namespaces, and needs the right to post to the path %s", err,
			options.PagePath)
	case err != nil:
		return err
	}
	var told options.Invitation
	if err := json.Unmarshal(data, &told); err != nil {
		return fmt.Errorf("read the link: %w", err)
	}
	u, err := url.Parse(told.URL)
	if err != nil || u.Scheme != "http" {
		return fmt.Errorf("the API server answers with %.80q, which is not a link", told.URL)
	}
	if linkOnly {
		fmt.Fprintln(s.Out, told.URL)
		return nil
	}
	fmt.Fprintf(s.Out, "Open this in a browser on the host of the control plane, once and until %s:\n\n  %s\n\n"+
		"From another host, first run: ssh -L %s:%s HOST\n", chain.Moment(told.Ends), told.URL,
		u.Port(), u.Host)
	return nil
}
