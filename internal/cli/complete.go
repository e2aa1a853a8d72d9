package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completionTime limits how long a completion may take.
const completionTime = 2 * time.Second

// completeClaim offers the claims of the namespace as the first argument, and
// files after that.
func (s *shell) completeClaim(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return s.names(cmd.Context(), "pvc"), cobra.ShellCompDirectiveNoFileComp
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
	return []string{"pvc", "pv", "pod", "sc", "node", "volumeattachment", "csinode", "csidriver"}, directive
}

// completeExplained offers the types that why explains, and then the names of
// objects.
func (s *shell) completeExplained(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 && !strings.Contains(word, "/") {
		return explained(), cobra.ShellCompDirectiveNoFileComp
	}
	return s.completeObjects(cmd, args, word)
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
