package shell

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/internal/workshop/finding"
)

// page is an output that says how many columns its lines may have.
type page struct {
	io.Writer
	columns int
}

// Columns returns how many columns a line may have.
func (p page) Columns() int { return p.columns }

// asWideAs returns an output with the width that $COLUMNS says, or else that of the terminal that it is; any other
// output as it is.
func asWideAs(out io.Writer) io.Writer {
	file, ok := out.(*os.File)
	if !ok {
		return out
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return page{out, columns}
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return out
	}
	return page{out, columns}
}

// Into returns a shell that prints to out instead, with lines as long as before.
func (s *Shell) Into(out io.Writer) *Shell {
	other := *s
	other.Out = page{out, chain.Columns(s.Out)}
	return &other
}

// Named returns the names of objects, with the prefix.
func Named[T metav1.Object](prefix string, objects []T) []string {
	var out []string
	for _, o := range objects {
		out = append(out, prefix+o.GetName())
	}
	return out
}

// PrintStructured prints a value as JSON or YAML if the output format is one of these, and says whether it did.
func (s *Shell) PrintStructured(output string, v any) (printed bool, err error) {
	if output != "json" && output != "yaml" {
		return false, nil
	}
	return true, s.PrintValue(v, output)
}

// PrintFindings prints the findings of checks; with wide also those without a problem. Paths below dir are printed
// relative to it; if no finding has a path, the table has no column for it.
func PrintFindings(out io.Writer, all []finding.Finding, dir string, wide bool) error {
	shown := slices.DeleteFunc(slices.Clone(all), func(f finding.Finding) bool { return f.Level == finding.Pass && !wide })
	paths := slices.ContainsFunc(shown, func(f finding.Finding) bool { return f.Path != "" })
	w := printers.GetNewTabWriter(out)
	row := func(level, check, path, message string) {
		if paths {
			check += "\t" + path
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", level, check, message)
	}
	if len(shown) > 0 {
		row("LEVEL", "CHECK", "PATH", "MESSAGE")
	}
	for _, f := range shown {
		path := f.Path
		if below, found := strings.CutPrefix(path, dir+"/"); found && dir != "" {
			path = below
		}
		row(string(f.Level), f.Check, OrNone(path), Sentence(f))
	}
	return w.Flush()
}

// Sentence returns the message of a finding and what to do about it.
func Sentence(f finding.Finding) string {
	if f.Next == "" {
		return f.Message
	}
	return f.Message + "; " + f.Next
}

// PrintExam prints the report of an examination, which err has ended before its end if it is not nil, and returns how
// the command ends.
func (s *Shell) PrintExam(output string, report any, show func() error, err error, failed bool) error {
	printed, problem := s.PrintStructured(output, report)
	if !printed {
		problem = show()
	}
	if err = cmp.Or(err, problem); err == nil && failed {
		return ErrProblem
	}
	return err
}

// Printer returns the printer of whole objects; nil for tables.
func Printer(output string) (printers.ResourcePrinter, error) {
	switch output {
	case "", "wide":
		return nil, nil
	case "json":
		return &printers.JSONPrinter{}, nil
	case "yaml":
		return &printers.YAMLPrinter{}, nil
	case "name":
		return &printers.NamePrinter{}, nil
	}
	if template, found := strings.CutPrefix(output, "jsonpath="); found {
		return jsonPath(template)
	}
	return nil, fmt.Errorf("unknown output %q: use wide, name, json, yaml or jsonpath=TEMPLATE", output)
}

// jsonPath returns the printer of a template, which may be a single path without braces.
func jsonPath(template string) (printers.ResourcePrinter, error) {
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	p, err := printers.NewJSONPathPrinter(template)
	if err != nil {
		return nil, fmt.Errorf("output %q: %w", "jsonpath="+template, err)
	}
	return p, nil
}

// Print prints a text, unless making it has failed.
func (s *Shell) Print(text []byte, err error) error {
	if err == nil {
		_, err = s.Out.Write(text)
	}
	return err
}

// OrNone returns a text for a cell of a table.
func OrNone(text string) string { return cmp.Or(text, "<none>") }

// PlainLine returns a line that others wrote for people: not too long, and without what a terminal could take for a
// command.
func PlainLine(line string) string {
	const longest = 400
	return redact.Bounded(strings.TrimRight(redact.Printable(line), " "), longest)
}

// Table returns how a row is added to a table, a namespace, which is shown if spaces is true, and the other cells; and
// how the table is printed then.
func Table(out io.Writer, spaces bool) (row func(ns string, cells ...string), flush func() error) {
	w := printers.GetNewTabWriter(out)
	return func(ns string, cells ...string) {
		if spaces {
			cells = append([]string{ns}, cells...)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}, w.Flush
}

// Actor is who acts next as a kind and a name, for which next is the text.
type Actor volume.Actor

// PrintValue writes any value as JSON or YAML.
func (s *Shell) PrintValue(v any, output string) error {
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

// progressDelay is how long a command waits before it prints what it waits for.
const progressDelay = 2 * time.Second

// Progress runs work. While it runs, after progressDelay, progress writes to w each new text that tell returns.
func Progress(
	ctx context.Context, w io.Writer, tell func(context.Context) string, work func(context.Context) error,
) error {
	ctx, stop := context.WithCancel(ctx)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		tick := time.NewTicker(progressDelay)
		defer tick.Stop()
		last := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if text := tell(ctx); text != last && text != "" && ctx.Err() == nil {
				fmt.Fprintln(w, text)
				last = text
			}
		}
	}()
	err := work(ctx)
	stop()
	<-printed
	return err
}

// WithTimeout returns a context that ends after d; zero means no limit.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
