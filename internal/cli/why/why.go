package why

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/fix"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/volume"
)

// completeExplained offers the types that why explains, and then the names of objects.
func completeExplained(s *shell.Shell) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 && !strings.Contains(word, "/") {
			return gather.Names(), cobra.ShellCompDirectiveNoFileComp
		}
		return objects.CompleteObjects(s)(cmd, args, word)
	}
}

func whyCommand(s *shell.Shell) *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:   "why [TYPE/NAME | TYPE NAME]",
		Short: "Explain what an object waits for, and why",
		Long: `Explain what an object waits for, why, and who acts next.

For one object: the chain from the claim through class, volume and attachment to
the mounts. The answer is the first link with a problem, or else the first that
waits. Types: ` + strings.Join(gather.Names(), ", ") + `,
and the short names that kubectl has for them. Without an object: every cause of
waiting in the namespace, with the objects that wait for it.

With --dry-run -f FILE: what would happen if these objects were created. If you
may create them, the API server validates them without creating them; a refusal
is an answer. Exit code 0 then means that, as far as can be known, everything
will be served without further action, and 2 that something prevents it or a
user has to act first.

With --fix: the commands that would free the object, with the risk of each. They
are not run.

Exit codes: 0 all is well, 1 error, 2 something waits or has a problem.`,
		Example: `  volplane why -A
  volplane why pvc/data
  volplane why pod reader -n web -o json
  volplane why --dry-run -f claim.yaml`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeExplained(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), s, q, args)
		},
	}
	f := c.Flags()
	f.BoolVarP(&q.all, "all-namespaces", "A", false, "list the causes in all namespaces")
	f.StringVarP(&q.output, "output", "o", "", "output format: json or yaml")
	f.StringVarP(&q.file, "filename", "f", "",
		"with --dry-run: YAML or JSON file, directory of such files, or - for standard input")
	shell.RegisterDryRun(c, (*shell.DryRun)(&q.dryRun),
		"explain what would happen if the objects of -f were created; create nothing")
	f.BoolVar(&q.fix, "fix", false, "print the commands that would free the object, with the risk of each; run none")
	f.BoolVarP(&q.watch, "watch", "w", false, "print the answer again whenever it changes, until interrupted")
	f.StringVar(&q.from, "from", "", "answer from this file of 'volplane snapshot-state', or from - (standard input)")
	for _, two := range [][]string{
		{"watch", "dry-run"},
		{"watch", "from"},
		{"watch", "fix"},
		{"dry-run", "from"},
		{"dry-run", "fix"},
		{"dry-run", "all-namespaces"},
	} {
		c.MarkFlagsMutuallyExclusive(two...)
	}
	return c
}

// question holds the flags of why.
type question struct {
	all    bool
	output string
	// from is the file of snapshot-state to answer from; empty for the API.
	from string
	// file is the file with the objects of a dry run.
	file string
	// dryRun predicts what would happen if the objects of file were created.
	dryRun bool
	// fix adds the commands that would free the object.
	fix bool
	// watch prints each new answer.
	watch bool
}

// check refuses invalid combinations of flags and arguments.
func (q question) check(args []string) error {
	switch {
	case q.all && len(args) > 0:
		return errors.New("--all-namespaces lists all causes: omit " + strings.Join(args, " "))
	case q.dryRun != (q.file != ""):
		return errDryRun
	case q.fix && len(args) == 0:
		return errors.New("--fix is about one object: name it, for example: volplane why --fix pvc/data")
	case q.dryRun && len(args) > 0:
		return errors.New("--dry-run explains the objects of -f: omit the object in the arguments")
	}
	return nil
}

// now returns the time from which ages are counted; zero while watching: an older age is no new answer.
func (q question) now(read time.Time) time.Time {
	if q.watch {
		return time.Time{}
	}
	return read
}

// times returns since when links do not hold; without attempts while watching: one more is not a new answer.
func (q question) times(o state.Objects) since.Times {
	if q.watch {
		return since.TimesOf(o).WithoutTries()
	}
	return since.TimesOf(o)
}

func run(ctx context.Context, s *shell.Shell, q question, args []string) error {
	if err := q.check(args); err != nil {
		return err
	}
	switch {
	case q.dryRun:
		return whyDryRun(ctx, s, q)
	case q.watch:
		return whyWatch(ctx, s, q, args)
	}
	return whyOnce(ctx, s, q, args)
}

// whyOnce prints one answer.
func whyOnce(ctx context.Context, s *shell.Shell, q question, args []string) (err error) {
	switch {
	case q.from != "":
		return whyFrom(s, q, args)
	case len(args) == 0:
		err = whyAnything(ctx, s, q)
	default:
		err = whyOne(ctx, s, q, args)
	}
	if errors.Is(err, shell.ErrProblem) {
		// A call that hangs has no error yet that could say that it is planted.
		s.PrintPlanted(ctx)
	}
	return err
}

// whyOne explains one object.
func whyOne(ctx context.Context, s *shell.Shell, q question, args []string) error {
	k, name, err := oneObject(args)
	if err != nil {
		return err
	}
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	facts := shell.Facts(client)
	told, found, err := k.Explain(ctx, facts, ns, name)
	switch {
	case err != nil:
		return err
	case !found:
		return notFoundError(ctx, client, k, ns, name)
	}
	return reportChain(s, told, facts.Objects, ns, q)
}

// tool is the program whose verbs the user has: kubectl for its plugin, and volplane otherwise, which may be alone.
func tool(s *shell.Shell) string {
	if s.Flags.Kubectl != nil {
		return "kubectl"
	}
	return "volplane"
}

// reportChain prints an answer, and returns shell.ErrProblem unless all is well.
func reportChain(s *shell.Shell, told chain.Chain, o state.Objects, ns string, q question) error {
	times := q.times(o)
	var err error
	switch {
	case q.output != "":
		e := explanationOf(times, ns, told)
		if q.fix {
			e.Fixes = fix.Remedies(o, ns, tool(s), told)
		}
		err = s.PrintValue(e, q.output)
	case q.fix:
		err = fix.Render(s.Out, told, fix.Remedies(o, ns, tool(s), told))
	default:
		err = chain.Render(s.Out, told, func(l chain.Link) string { return times.Of(ns, told, l).Text(q.now(o.Now)) })
	}
	if err != nil {
		return err
	}
	if !told.Healthy() {
		return shell.ErrProblem
	}
	return nil
}

// notFoundError returns the error for an object that does not exist, with the command that lists the existing ones.
func notFoundError(ctx context.Context, client kubernetes.Interface, k gather.Kind, ns, name string) error {
	if !k.Namespaced {
		return fmt.Errorf("%s/%s does not exist; to list all: volplane get %s", k.Name, name, k.Name)
	}
	if err := requireNamespace(ctx, client, ns); err != nil {
		return err
	}
	return fmt.Errorf("%s/%s does not exist in namespace %s; to list all namespaces: volplane get %s -A", k.Name, name,
		ns, k.Name)
}

// requireNamespace returns an error if a namespace does not exist. Without the right to
// read it, its existence is assumed.
func requireNamespace(ctx context.Context, client kubernetes.Interface, ns string) error {
	if _, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("namespace %s does not exist; to list all: volplane get ns", ns)
	}
	return nil
}

// example returns the name of an object for the example of a command, which is the word that was typed alone unless it
// is a type.
func example(word string, more bool) string {
	if _, err := gather.KindOf(word); more || err == nil {
		return "data"
	}
	return word
}

// oneObject parses the type and the name of an object that can be explained.
func oneObject(args []string) (gather.Kind, string, error) {
	word, name, ok := strings.Cut(strings.Join(args, "/"), "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return gather.Kind{}, "", fmt.Errorf("name one object, for example: volplane why pvc/%s", example(word, ok))
	}
	k, err := gather.KindOf(word)
	return k, name, err
}

// whyAnything lists every cause of waiting.
func whyAnything(ctx context.Context, s *shell.Shell, q question) error {
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	if q.all {
		ns = metav1.NamespaceAll
	} else if err := requireNamespace(ctx, client, ns); err != nil {
		return err
	}
	r := shell.Facts(client)
	summary := r.Summary
	if q.watch {
		// A change may be on its way to what the control plane has in memory, and nothing tells when it has arrived.
		summary = r.NewestSummary
	}
	told, err := summary(ctx, ns)
	if err != nil {
		return err
	}
	err = reportCauses(s, told, q)
	if q.output == "" {
		shell.PrintRestored(ctx, s.Out, client)
	}
	return err
}

// reportCauses prints every cause of waiting, and returns shell.ErrProblem if there is one.
func reportCauses(s *shell.Shell, told survey.Summary, q question) error {
	if err := printCauses(s, told, q); err != nil {
		return err
	}
	if len(told.Causes) > 0 {
		return shell.ErrProblem
	}
	return nil
}

// explanation is the JSON output for one object.
type explanation struct {
	Subject string `json:"subject"`
	Healthy bool   `json:"healthy"`
	// State, Since, Next and Actor are those of the answer.
	State  chain.State  `json:"state"`
	Since  *metav1.Time `json:"since,omitempty"`
	Next   volume.Actor `json:"next,omitzero"`
	Actor  shell.Actor  `json:"actor,omitzero"`
	Answer linkOut      `json:"answer"`
	Links  []linkOut    `json:"links"`
	// Fixes are the commands that --fix prints.
	Fixes []fix.Remedy `json:"fixes,omitempty"`
}

type linkOut struct {
	Subject string        `json:"subject"`
	State   chain.State   `json:"state"`
	Reason  volume.Reason `json:"reason"`
	Message string        `json:"message"`
	Next    volume.Actor  `json:"next,omitzero"`
	Actor   shell.Actor   `json:"actor,omitzero"`
	Cause   volume.Cause  `json:"cause,omitzero"`
	// Since is the time since when the link has this state; nil if it is not known.
	Since *metav1.Time `json:"since,omitempty"`
	// Attempt is the number of failures in a row, LastTry the time of the newest one, and NextTry when the next try begins
	// at the latest. Reported is how often a failure was reported if the program does not count its attempts.
	Attempt  int          `json:"attempt,omitempty"`
	Reported int          `json:"reported,omitempty"`
	LastTry  *metav1.Time `json:"lastTry,omitempty"`
	NextTry  *metav1.Time `json:"nextTry,omitempty"`
}

// causeOut is the JSON output for a cause of waiting.
type causeOut struct {
	linkOut `json:",inline"`
	Waits   []waitOut `json:"waits"`
}

type waitOut struct {
	Namespace string `json:"namespace,omitempty"`
	Subject   string `json:"subject"`
}

func outOf(l chain.Link, is since.Time) linkOut {
	return linkOut{
		Subject: l.Subject, State: l.State, Reason: l.Because.Reason, Message: l.Because.Message,
		Next: l.Because.Next, Actor: shell.Actor(l.Because.Next), Cause: l.Because.Cause,
		Since: optionalTime(is.Since), Attempt: is.Attempt,
		Reported: is.Reported, LastTry: optionalTime(is.Last), NextTry: optionalTime(is.Next),
	}
}

// optionalTime returns nil for a time that is not known.
func optionalTime(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	return &metav1.Time{Time: at}
}

func explanationOf(t since.Times, ns string, c chain.Chain) explanation {
	a := outOf(c.Answer(), t.Of(ns, c, c.Answer()))
	e := explanation{
		Subject: c.Subject, Healthy: c.Healthy(), State: a.State, Since: a.Since, Next: a.Next, Actor: a.Actor, Answer: a,
	}
	for _, l := range c.Links {
		e.Links = append(e.Links, outOf(l, t.Of(ns, c, l)))
	}
	return e
}

func printCauses(s *shell.Shell, told survey.Summary, q question) error {
	switch {
	case q.output != "":
		out := make([]causeOut, 0, len(told.Causes))
		for _, c := range told.Causes {
			if q.watch {
				c.Time.Tries = since.Tries{} // one more is no new answer
			}
			next := causeOut{linkOut: outOf(c.Link, c.Time)}
			for _, w := range c.Waits {
				next.Waits = append(next.Waits, waitOut(w))
			}
			out = append(out, next)
		}
		return s.PrintValue(map[string]any{"causes": out}, q.output)
	case len(told.Causes) == 0:
		_, err := fmt.Fprintf(s.Out, "Nothing waits: %d claims, %d pods, %d volumes and %d nodes are healthy.\n",
			sum(told.Claims), told.Pods, sum(told.Volumes), len(told.Nodes))
		return err
	}
	return survey.RenderCauses(s.Out, told.Causes, q.all, func(c survey.Cause) string {
		return since.Time{Since: c.Time.Since}.Text(q.now(told.Now))
	})
}

func sum(numbers map[string]int) int {
	all := 0
	for _, n := range numbers {
		all += n
	}
	return all
}
