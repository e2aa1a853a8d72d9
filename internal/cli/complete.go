package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/gather"
)

// completionTime limits how long a completion may take.
const completionTime = 2 * time.Second

// completeClaim offers the claims of the namespace as the first argument, and
// directories after that.
func (s *shell) completeClaim(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return s.names(cmd.Context(), "pvc"), cobra.ShellCompDirectiveNoFileComp
}

// completeNames offers the names of the objects of a type.
func (s *shell) completeNames(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return s.names(cmd.Context(), kind), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst offers the names of the objects of a type as the first argument.
func (s *shell) completeFirst(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return s.names(cmd.Context(), kind), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeObjects offers types, and then the names of objects of the type.
func (s *shell) completeObjects(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 && !strings.Contains(args[0], "/") {
		return s.names(cmd.Context(), args[0]), directive
	}
	if kind, _, ok := strings.Cut(word, "/"); ok {
		names := s.names(cmd.Context(), kind)
		for i := range names {
			names[i] = kind + "/" + names[i]
		}
		return names, directive
	}
	return append(gather.Names(), "volumesnapshotclass", "configmap", "secret", "event"), directive
}

// completeExplained offers the types that why explains, and then the names of
// objects.
func (s *shell) completeExplained(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 && !strings.Contains(word, "/") {
		return gather.Names(), cobra.ShellCompDirectiveNoFileComp
	}
	return s.completeObjects(cmd, args, word)
}

// completeOutputs offers the formats that the usage of each flag -o lists.
func completeOutputs(c *cobra.Command) {
	for _, below := range c.Commands() {
		completeOutputs(below)
	}
	f := c.Flags().Lookup("output")
	if f == nil {
		return
	}
	if words := formats(f.Usage); len(words) > 0 {
		_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// formats returns the output formats in the usage of a flag. A format that takes a value ends with an equals sign.
func formats(usage string) []string {
	var out []string
	for _, word := range strings.FieldsFunc(usage, func(r rune) bool { return strings.ContainsRune(" ,:", r) }) {
		if before, _, takes := strings.Cut(word, "="); takes {
			word = before + "="
		}
		if slices.Contains([]string{"wide", "name", "json", "yaml", "jsonpath="}, word) {
			out = append(out, word)
		}
	}
	return out
}

// names returns the names of all objects of a type, or nil if the server does
// not answer in time.
func (s *shell) names(ctx context.Context, kind string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	o, err := s.objects()
	if err != nil {
		return nil
	}
	m, err := o.kind(kind)
	if err != nil {
		return nil
	}
	list, err := o.at(m, o.namespace).List(ctx, selection{}.options())
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, list.Items[i].GetName())
	}
	return out
}
