//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
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
	r := newFacts(client)
	if err := errors.Join(r.ReadRoom(ctx), r.All(ctx, metav1.NamespaceAll)); err != nil {
		return err
	}
	var told *room.Report
	if answer, ok := gather.Room(ctx, client); ok {
		told = &answer
	}
	report := reportOf(r.Objects, told, validities(ctx, config))
	report.Server, report.Version = config.Host, version.GitVersion
	printed, err := s.printStructured(output, report)
	if !printed {
		err = s.printStatus(ctx, client, r, report)
	}
	if err == nil && !report.Healthy {
		return errProblem
	}
	return err
}

// printStatus prints the status for people.
func (s *shell) printStatus(
	ctx context.Context, client kubernetes.Interface, r *gather.Facts, report statusReport,
) error {
	fmt.Fprintf(s.Out, "API server  %s, Kubernetes API %s\n\n", report.Server, report.Version)
	printUnhealthy(s.Out, r)
	if err := printNodes(s.Out, r); err != nil {
		return err
	}
	fmt.Fprintln(s.Out)
	printCounts(s.Out, r)
	printRoom(ctx, s.Out, client)
	s.printAgeing(report)
	printRestored(ctx, s.Out, client)
	s.printProblems(report)
	s.tellPlanted(ctx)
	return nil
}

func printNodes(out io.Writer, r *gather.Facts) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATUS\tATTACHED\tIN-USE\tDRIVERS")
	for _, n := range r.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", n.Name, readiness(n), len(n.Status.VolumesAttached),
			len(n.Status.VolumesInUse), driversOf(r.CSINodes, n.Name))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range r.Nodes {
		notes := note.Of(n)
		for _, driver := range slices.Sorted(maps.Keys(notes)) {
			if b := note.Absent(driver, n); notes[driver] != "" && b.Reason != "" {
				fmt.Fprintf(out, "\n%s. See: volplane why node/%s\n", plainLine(b.Message), n.Name)
			}
		}
	}
	return nil
}

func readiness(n *corev1.Node) string {
	if nodelife.Ready(n) {
		return "Ready"
	}
	return "NotReady"
}

func driversOf(nodes []*storagev1.CSINode, name string) string {
	var names []string
	for _, n := range nodes {
		if n.Name != name {
			continue
		}
		for _, d := range n.Spec.Drivers {
			names = append(names, d.Name)
		}
	}
	return orNone(strings.Join(names, ","))
}

func printCounts(out io.Writer, r *gather.Facts) {
	var claims, volumes, attachments []string
	var pending *corev1.PersistentVolumeClaim
	for _, c := range r.Claims {
		claims = append(claims, string(c.Status.Phase))
		if c.Status.Phase != corev1.ClaimBound && pending == nil {
			pending = c
		}
	}
	for _, v := range r.Volumes {
		volumes = append(volumes, string(v.Status.Phase))
	}
	for _, a := range r.Attachments {
		attachments = append(attachments, attachedOrNot(a))
	}
	fmt.Fprintf(out, "claims       %s\nvolumes      %s\nattachments  %s\n", tally(claims), tally(volumes),
		tally(attachments))
	printUnsettled(out, r)
	if pending != nil {
		fmt.Fprintf(out, "\nNot every claim is bound. See: volplane why pvc/%s -n %s\n", pending.Name, pending.Namespace)
	}
}

func attachedOrNot(a *storagev1.VolumeAttachment) string {
	if a.Status.Attached {
		return "attached"
	}
	return "not attached"
}

// printUnsettled counts the volumes whose creation has no known outcome for some
// time. It prints nothing if there are none or the user may not read the intents.
func printUnsettled(out io.Writer, r *gather.Facts) {
	open := survey.Unsettled(why.Of(r.Objects))
	if len(open) == 0 {
		return
	}
	oldest := slices.MinFunc(open, func(a, b *provision.Intent) int { return a.Begun.Compare(b.Begun.Time) })
	fmt.Fprintf(out, "unresolved   %d, the first for claim %s/%s at driver %s since %s. See: volplane why -A\n",
		len(open), oldest.Claim.Namespace, oldest.Claim.Name, oldest.Driver, timeText(oldest.Begun.Time))
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return chain.Moment(t)
}

// tally counts equal words, as in "3: 2 Bound, 1 Pending".
func tally(words []string) string {
	slices.Sort(words)
	var parts []string
	for i := 0; i < len(words); {
		n := i
		for n < len(words) && words[n] == words[i] {
			n++
		}
		parts = append(parts, fmt.Sprintf("%d %s", n-i, words[i]))
		i = n
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
