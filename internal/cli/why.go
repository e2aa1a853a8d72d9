package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

func (s *shell) whyCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "why TYPE/NAME | TYPE NAME",
		Short: "Tell who waits for whom, and why",
		Long: `Tell who waits for whom, and why: the way from the claim over its class,
volume and attachment to its mounts, and the first step of it that does not
hold. Types: pvc, pv, pod, volumeattachment.

Exit codes: 0 all is well, 1 error, 2 something waits or is broken.`,
		Example: `  volplane why pvc/data
  volplane why pod reader -n web -o json`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: s.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.why(cmd.Context(), args, output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "form of the output: json or yaml")
	return c
}

func (s *shell) why(ctx context.Context, args []string, output string) error {
	if output != "" && output != "json" && output != "yaml" {
		return fmt.Errorf("unknown output %q: use json or yaml", output)
	}
	kind, name, ok := strings.Cut(strings.Join(args, "/"), "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("name one object, for example: volplane why pvc/data")
	}
	explain, ok := explainers()[strings.ToLower(kind)]
	if !ok {
		return fmt.Errorf("cannot explain a %q: use pvc, pv, pod or volumeattachment", kind)
	}
	client, ns, err := s.client()
	if err != nil {
		return err
	}
	chain, err := explain(ctx, client, ns, name)
	if err != nil {
		return err
	}
	if err := s.printChain(chain, output); err != nil {
		return err
	}
	if !chain.Healthy() {
		return errProblem
	}
	return nil
}

// explainer gathers the facts about one object and explains it.
type explainer func(ctx context.Context, client kubernetes.Interface, ns, name string) (why.Chain, error)

func explainers() map[string]explainer {
	return map[string]explainer{
		"pvc": explainClaim, "persistentvolumeclaim": explainClaim, "persistentvolumeclaims": explainClaim,
		"pv": explainVolume, "persistentvolume": explainVolume, "persistentvolumes": explainVolume,
		"po": explainPod, "pod": explainPod, "pods": explainPod,
		"va": explainAttachment, "volumeattachment": explainAttachment, "volumeattachments": explainAttachment,
		"volumeattachment.storage.k8s.io": explainAttachment,
	}
}

func explainClaim(ctx context.Context, client kubernetes.Interface, ns, name string) (why.Chain, error) {
	facts, err := claimFacts(ctx, client, ns, name)
	if err != nil {
		return why.Chain{}, err
	}
	return why.Explain(facts), nil
}

func explainVolume(ctx context.Context, client kubernetes.Interface, _, name string) (why.Chain, error) {
	facts, err := volumeFacts(ctx, client, name)
	if err != nil {
		return why.Chain{}, err
	}
	return why.Join("pv/"+name, why.Explain(facts)), nil
}

func explainAttachment(ctx context.Context, client kubernetes.Interface, _, name string) (why.Chain, error) {
	a, err := client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return why.Chain{}, err
	}
	if a.Spec.Source.PersistentVolumeName == nil {
		return why.Chain{}, fmt.Errorf("attachment %s names no volume", name)
	}
	chain, err := explainVolume(ctx, client, "", *a.Spec.Source.PersistentVolumeName)
	return why.Join("volumeattachment/"+name, chain), err
}

// explainPod joins the chains of all claims that the Pod uses.
func explainPod(ctx context.Context, client kubernetes.Interface, ns, name string) (why.Chain, error) {
	pod, err := client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return why.Chain{}, err
	}
	var chains []why.Chain
	var last why.Facts
	for _, claim := range kube.ClaimNames(pod) {
		facts, err := claimFacts(ctx, client, ns, claim)
		if err != nil {
			return why.Chain{}, err
		}
		facts.OnlyPod = name
		last = facts
		chains = append(chains, why.Explain(facts))
	}
	if len(chains) == 0 {
		facts, err := claimFacts(ctx, client, ns, "")
		if err != nil {
			return why.Chain{}, err
		}
		last = facts
	}
	joined := why.Join("pod/"+name, chains...)
	if !tells(joined, pod) {
		joined.Links = append(joined.Links, why.Pod(last, pod))
	}
	return joined, nil
}

func tells(c why.Chain, p *corev1.Pod) bool {
	for _, l := range c.Links {
		if l.Subject == "pod/"+p.Name {
			return true
		}
	}
	return false
}

// explanation is a chain as programs read it.
type explanation struct {
	Subject string      `json:"subject"`
	Healthy bool        `json:"healthy"`
	Answer  explained   `json:"answer"`
	Links   []explained `json:"links"`
}

type explained struct {
	Subject string        `json:"subject"`
	State   why.State     `json:"state"`
	Reason  volume.Reason `json:"reason"`
	Message string        `json:"message"`
	Next    string        `json:"next,omitempty"`
}

func linkOut(l why.Link) explained {
	return explained{l.Subject, l.State, l.Because.Reason, l.Because.Message, l.Because.Next}
}

func (s *shell) printChain(c why.Chain, output string) error {
	if output == "" {
		return why.Render(s.Out, c)
	}
	e := explanation{Subject: c.Subject, Healthy: c.Healthy(), Answer: linkOut(c.Answer())}
	for _, l := range c.Links {
		e.Links = append(e.Links, linkOut(l))
	}
	return s.printValue(e, output)
}

// printValue writes any value as JSON or YAML.
func (s *shell) printValue(v any, output string) error {
	data, err := json.MarshalIndent(v, "", "    ")
	if err == nil && output == "yaml" {
		data, err = yaml.Marshal(v)
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	_, err = fmt.Fprintln(s.Out, strings.TrimSuffix(string(data), "\n"))
	return err
}

// answer returns one line about the claim as one Pod uses it; what cannot be
// found out is not told.
func (s *shell) answer(ctx context.Context, client kubernetes.Interface, ns, claim, pod string) string {
	facts, err := claimFacts(ctx, client, ns, claim)
	if err != nil {
		return ""
	}
	facts.OnlyPod = pod
	return why.Headline(why.Explain(facts))
}

// reason returns one line about what an object that is being deleted waits
// for.
func (s *shell) reason(ctx context.Context, v doomed) string {
	if explain, ok := explainers()[strings.ToLower(v.mapping.GroupVersionKind.Kind)]; ok {
		if client, _, err := s.client(); err == nil {
			if chain, err := explain(ctx, client, v.ns, v.name); err == nil {
				return why.Headline(chain)
			}
		}
	}
	return "it is being deleted"
}
