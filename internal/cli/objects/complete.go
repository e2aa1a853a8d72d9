package objects

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/gather"
)

// completionTime limits how long a completion may take.
const completionTime = 2 * time.Second

// CompleteClaim offers the claims of the namespace as the first argument, and
// directories after that.
func CompleteClaim(s *shell.Shell) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return Names(cmd.Context(), s, "pvc"), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteNames offers the names of the objects of a type.
func CompleteNames(s *shell.Shell, kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return Names(cmd.Context(), s, kind), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFirst offers the names of the objects of a type as the first argument.
func CompleteFirst(s *shell.Shell, kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return Names(cmd.Context(), s, kind), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteObjects offers types, and then the names of objects of the type.
func CompleteObjects(s *shell.Shell) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		const directive = cobra.ShellCompDirectiveNoFileComp
		if len(args) > 0 && !strings.Contains(args[0], "/") {
			return Names(cmd.Context(), s, args[0]), directive
		}
		if kind, _, ok := strings.Cut(word, "/"); ok {
			names := Names(cmd.Context(), s, kind)
			for i := range names {
				names[i] = kind + "/" + names[i]
			}
			return names, directive
		}
		return append(gather.Names(), "volumesnapshotclass", "configmap", "secret", "event"), directive
	}
}

// Names returns the names of all objects of a type, or nil if the server does
// not answer in time.
func Names(ctx context.Context, s *shell.Shell, kind string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	o, err := Of(s)
	if err != nil {
		return nil
	}
	m, err := o.kind(kind)
	if err != nil {
		return nil
	}
	list, err := o.At(m, o.Namespace).List(ctx, Selection{}.Options())
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, list.Items[i].GetName())
	}
	return out
}
