package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/sidecar"
)

// completeOutputs offers the formats that the usage of each flag -o lists.
func completeOutputs(c *cobra.Command) {
	for _, below := range c.Commands() {
		completeOutputs(below)
	}
	if words := shell.Formats(c); len(words) > 0 {
		for i, word := range words {
			words[i] = strings.TrimSuffix(word, "TEMPLATE")
		}
		_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// normaliseSidecars has the command of controllers know the other names of its flags, too. It must be called when the
// command is in its place: there it gets the names that all commands know, instead of any that it had.
func normaliseSidecars(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() == "controller" {
			c.SetGlobalNormalizationFunc(func(set *pflag.FlagSet, name string) pflag.NormalizedName {
				return sidecar.Normalise(set, string(shell.VerbosityByLetter(set, name)))
			})
		}
	}
}

// refuseOthers has each command that is given too few or too many arguments say which ones it takes, and those that
// cobra adds refuse what they do not know.
func refuseOthers(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		tellUsage(c)
		switch c.Name() {
		case "completion":
			c.Args, c.RunE = shell.Subcommand, func(c *cobra.Command, _ []string) error { return c.Help() }
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err == nil {
					err = shell.Subcommand(about, rest)
				}
				return err
			}
		}
	}
}

func tellUsage(c *cobra.Command) {
	for _, below := range c.Commands() {
		tellUsage(below)
	}
	accept := c.Args
	if accept == nil || c.HasSubCommands() {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		err := accept(c, args)
		// Cobra's own messages do not name the argument.
		if err != nil && (strings.Contains(err.Error(), " arg(s)") || strings.HasPrefix(err.Error(), "unknown command")) {
			return fmt.Errorf("%w: use '%s'", err, c.UseLine())
		}
		return err
	}
}
