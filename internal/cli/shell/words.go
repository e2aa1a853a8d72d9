package shell

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// DryRun is the value of a flag --dry-run, which kubectl spells --dry-run=server.
type DryRun bool

func (d *DryRun) String() string { return strconv.FormatBool(bool(*d)) }

// Type is what stands for a value in the usage.
func (d *DryRun) Type() string { return "none|server" }

// Set takes kubectl's words and those of a flag without a value.
func (d *DryRun) Set(word string) error {
	switch word {
	case "server", "true":
		*d = true
	case "none", "false":
		*d = false
	default:
		return fmt.Errorf("use none or server: the server validates everything, and stores nothing")
	}
	return nil
}

// RegisterDryRun adds a flag --dry-run, which may stand alone.
func RegisterDryRun(c *cobra.Command, d *DryRun, usage string) {
	f := c.Flags().VarPF(d, "dry-run", "", usage)
	f.NoOptDefVal, f.DefValue = "server", "none"
	_ = c.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{"none", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// Formats returns the output formats that the usage of a command's flag -o lists; none without that flag. A format that
// takes a value has it after an equals sign.
func Formats(c *cobra.Command) []string {
	f := c.Flags().Lookup("output")
	if f == nil {
		return nil
	}
	words := strings.FieldsFunc(f.Usage, func(r rune) bool { return strings.ContainsRune(" ,:", r) })
	return slices.DeleteFunc(words, func(word string) bool {
		name, _, _ := strings.Cut(word, "=")
		return !slices.Contains([]string{"wide", "name", "json", "yaml", "jsonpath"}, name)
	})
}

// knownOutput refuses an output format that a command does not have.
func knownOutput(c *cobra.Command) error {
	known := Formats(c)
	if len(known) == 0 {
		return nil
	}
	output := c.Flag("output").Value.String()
	name, _, _ := strings.Cut(output, "=")
	is := func(format string) bool { return format == name || strings.HasPrefix(format, name+"=") }
	if name == "" || slices.ContainsFunc(known, is) {
		return nil
	}
	last := len(known) - 1
	use := strings.TrimPrefix(strings.Join(known[:last], ", ")+" or "+known[last], " or ")
	return fmt.Errorf("unknown output %q: use %s", output, use)
}

// Subcommand refuses an argument of a command that only has others below it, and says which one may be meant.
func Subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = Distance(args[0])
	if meant := c.SuggestionsFor(args[0]); len(meant) > 0 {
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(meant, " or "))
	}
	return fmt.Errorf("%s: see '%s --help'", text, c.CommandPath())
}

// Distance is how many letters a command may differ from a word that is not one: two letters that are exchanged are
// two, but a word of two letters would be any other.
func Distance(word string) int {
	if len(word) < 3 {
		return 1
	}
	return 2
}

// maxSecretFile limits the size of a secret, which becomes part of an argument.
const maxSecretFile = 1 << 20

// AsIs is the value of a pair as it was typed.
func AsIs(value string) (string, error) { return value, nil }

// Pairs reads KEY=VALUE arguments of a flag.
func Pairs(flag string, all []string, read func(string) (string, error)) (map[string]string, error) {
	out := map[string]string{}
	for _, one := range all {
		key, value, found := strings.Cut(one, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("%s: want KEY=VALUE", flag)
		}
		value, err := read(value)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, key, err)
		}
		out[key] = value
	}
	return out, nil
}

// ReadSecret returns what is in a file, which must be small and regular.
func ReadSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxSecretFile) {
		err = fmt.Errorf("%s is not a regular file of at most 1 MiB", path)
	}
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	return string(data), err
}

// InitCommand returns a command that writes a driver to start from, in one of several languages, of which the first one
// is the default. write returns the paths of the files, that of the test last.
func (s *Shell) InitCommand(
	languages []string, write func(name, dir, language string) ([]string, error),
) *cobra.Command {
	var dir, language string
	c := &cobra.Command{
		Use:  "init NAME",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			paths, err := write(args[0], dir, language)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "wrote %s\ntry it, as root: sh %s\n", strings.Join(paths, " and "), paths[len(paths)-1])
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "dir", "", "directory to write to (default the name of the driver)")
	f.StringVar(&language, "language", languages[0], "language of the driver: "+strings.Join(languages, ", "))
	_ = c.MarkFlagDirname("dir")
	_ = c.RegisterFlagCompletionFunc("language",
		cobra.FixedCompletions(languages, cobra.ShellCompDirectiveNoFileComp))
	return c
}
