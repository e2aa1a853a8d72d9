// Command manual writes the manual pages of programs, compressed: one for each program, and one for each of its verbs,
// from the output of --help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"volplane.dev/volplane/release/tree"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run writes the pages of the programs that a command line names, into a new directory.
func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("manual", flag.ContinueOnError)
	out := f.String("out", "", "directory of the pages, which is emptied first")
	version := f.String("version", "", "version of the programs")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *out == "" || f.NArg() == 0 {
		return errors.New("usage: manual -out DIRECTORY -version VERSION PROGRAM [...]")
	}
	if err := errors.Join(os.RemoveAll(*out), os.MkdirAll(*out, 0o750)); err != nil {
		return err
	}
	m := manual{out: *out, version: *version}
	for _, program := range f.Args() {
		m.program = program
		if err := m.page(ctx); err != nil {
			return err
		}
	}
	return nil
}

// manual is a manual that is being written.
type manual struct{ out, version, program string }

// page writes the page of a verb, and those of the verbs below it. Without a verb it is the page of the program.
func (m manual) page(ctx context.Context, verb ...string) error {
	help, err := m.help(ctx, verb)
	if err != nil {
		return err
	}
	var others []string
	if len(verb) > 0 {
		others = append(others, m.name(verb[:len(verb)-1]))
	}
	for _, below := range verbs(help) {
		next := append(verb[:len(verb):len(verb)], below)
		if err := m.page(ctx, next...); err != nil {
			return err
		}
		others = append(others, m.name(next))
	}
	text := m.format(m.name(verb), help, others)
	packed, err := tree.Gzip([]byte(text))
	if err != nil {
		return err
	}
	at := filepath.Join(m.out, m.name(verb)+".8.gz")
	return os.WriteFile(at, packed, 0o644) // #nosec G306 -- a manual is for everybody
}

// name returns the name of a page.
func (m manual) name(verb []string) string {
	return strings.Join(append([]string{filepath.Base(m.program)}, verb...), "-")
}

// help returns what the program prints for a verb.
func (m manual) help(ctx context.Context, verb []string) (string, error) {
	cmd := exec.CommandContext(ctx, m.program, append(verb[:len(verb):len(verb)], "--help")...)
	// It must not depend on the user who runs it.
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent"}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s --help: %w", m.program, strings.Join(verb, " "), err)
	}
	return string(out), nil
}

// format returns a page: the help text in the markup of a formatter.
func (m manual) format(name, help string, others []string) string {
	summary, _, _ := strings.Cut(help, "\n")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 8 \"\" \"%s\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), roff("volplane "+m.version),
		roff(name), roff(strings.TrimSuffix(summary, ".")))
	b.WriteString(".SH DESCRIPTION\n.nf\n")
	for line := range strings.Lines(help) {
		b.WriteString(roff(line))
	}
	b.WriteString(".fi\n")
	for i, other := range others {
		if i == 0 {
			b.WriteString(".SH \"SEE ALSO\"\n")
		}
		end := ","
		if i == len(others)-1 {
			end = ""
		}
		fmt.Fprintf(&b, ".BR %s (8)%s\n", roff(other), end)
	}
	return b.String()
}

// roff escapes text that a formatter would interpret.
func roff(line string) string {
	line = strings.ReplaceAll(line, `\`, `\e`)
	line = strings.ReplaceAll(line, "-", `\-`)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}

// verbs returns those that a help lists.
func verbs(help string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z][a-z0-9-]*) +[A-Z]`).FindAllStringSubmatch(help, -1) {
		if m[1] != "help" && m[1] != "completion" {
			out = append(out, m[1])
		}
	}
	return out
}
