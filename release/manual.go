package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"volplane.dev/volplane/release/tree"
)

// manual returns the manual page of a program, compressed: its help, and that of each of its commands.
func (r *release) manual(ctx context.Context, name string) ([]byte, error) {
	at := filepath.Join(r.folder(runtime.GOARCH), name)
	help, err := output(ctx, at, "--help")
	if err != nil {
		return nil, err
	}
	summary, _, _ := strings.Cut(help, "\n")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 8 \"%s\" \"%s\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), r.when.Format("2006-01-02"),
		"volplane "+r.number(), name, roff(strings.TrimSuffix(summary, ".")))
	section(&b, "DESCRIPTION", help)
	for _, verb := range commands(help) {
		text, err := output(ctx, at, verb, "--help")
		if err != nil {
			return nil, err
		}
		section(&b, strings.ToUpper(name+" "+verb), text)
	}
	return tree.Gzip([]byte(b.String()))
}

// section adds a section with a text as it is.
func section(b *strings.Builder, title, text string) {
	fmt.Fprintf(b, ".SH \"%s\"\n.nf\n", title)
	for line := range strings.Lines(text) {
		b.WriteString(roff(line))
	}
	b.WriteString(".fi\n")
}

// roff marks what a formatter would take for its own words.
func roff(line string) string {
	line = strings.ReplaceAll(line, `\`, `\e`)
	line = strings.ReplaceAll(line, "-", `\-`)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}

// commands returns the commands that a help lists.
func commands(help string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +[A-Z]`).FindAllStringSubmatch(help, -1) {
		if m[1] != "help" && m[1] != "completion" {
			out = append(out, m[1])
		}
	}
	return out
}
