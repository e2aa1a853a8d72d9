package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// dryRun is the value of a flag --dry-run, which kubectl spells --dry-run=server.
type dryRun bool

func (d *dryRun) String() string { return strconv.FormatBool(bool(*d)) }
func (d *dryRun) Type() string   { return "none|server" }

// Set takes kubectl's words and those of a flag without a value.
func (d *dryRun) Set(word string) error {
	switch word {
	case "server", "true":
		*d = true
	case "none", "false":
		*d = false
	default:
		return fmt.Errorf("there are only none and server: the server validates everything, and stores nothing")
	}
	return nil
}

// registerDryRun adds a flag --dry-run, which may stand alone.
func registerDryRun(c *cobra.Command, d *dryRun, usage string) {
	f := c.Flags().VarPF(d, "dry-run", "", usage)
	f.NoOptDefVal, f.DefValue = "server", "none"
	_ = c.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{"none", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// knownOutput refuses an output format that a command does not have.
func knownOutput(output string, known ...string) error {
	if output == "" || slices.Contains(known, output) {
		return nil
	}
	last := len(known) - 1
	return fmt.Errorf("unknown output %q: use %s or %s", output, strings.Join(known[:last], ", "), known[last])
}

// subcommand refuses an argument of a command that only has others below it, and says which one may be meant.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = distance(args[0])
	if meant := c.SuggestionsFor(args[0]); len(meant) > 0 {
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(meant, " or "))
	}
	return fmt.Errorf("%s: see '%s --help'", text, c.CommandPath())
}

// distance is how many letters a command may differ from a word that is not one: two letters that are exchanged are
// two, but a word of two letters would be any other.
func distance(word string) int {
	if len(word) < 3 {
		return 1
	}
	return 2
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
			c.Args, c.RunE = subcommand, func(c *cobra.Command, _ []string) error { return c.Help() }
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err == nil {
					err = subcommand(about, rest)
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
