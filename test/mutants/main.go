// Command mutants changes packages in small ways and reports which changes their own
// tests do not notice. All changes of a package are built into one test binary, each
// behind a condition, so that a change costs a run of the tests and no build; the tree
// itself is not touched.
//
// It prints each survivor as FILE:LINE and the change, and a rate per package,
// and exits with 1 when one is below its bound (bounds.go).
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o := options{bounds: bounds(), out: os.Stdout}
	flag.StringVar(&o.dir, "C", ".", "the module's directory")
	flag.IntVar(&o.parallel, "parallel", 2, "how many changes are tried at once")
	flag.Func("files", "only these files, by name, separated by commas", func(text string) error {
		o.files = strings.Split(text, ",")
		return nil
	})
	flag.Parse()
	err := run(ctx, o, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// options are what a run depends on.
type options struct {
	dir      string
	parallel int
	files    []string
	bounds   []bound
	out      io.Writer
}

// tally counts what became of changes.
type tally struct{ killed, all int }

func (t tally) rate() float64 {
	if t.all == 0 {
		return 100
	}
	return 100 * float64(t.killed) / float64(t.all)
}

// run tries all packages, and returns an error when one is below its bound.
func run(ctx context.Context, o options, patterns []string) error {
	packages, err := list(ctx, o.dir, patterns)
	if err != nil {
		return err
	}
	total, below := tally{}, []string(nil)
	for _, p := range packages {
		t, low, err := tryPackage(ctx, o, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		total.killed, total.all = total.killed+t.killed, total.all+t.all
		below = append(below, low...)
	}
	fmt.Fprintf(o.out, "%4.0f%%  %4d of %4d  all\n", total.rate(), total.killed, total.all)
	if len(below) > 0 {
		return fmt.Errorf("below the bound: %s", strings.Join(below, ", "))
	}
	return nil
}

func byPlace(a, b *mutant) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
}

// tryPackage tries all changes of a package, prints the results, and returns the count and the bounds that are not
// reached.
func tryPackage(ctx context.Context, o options, p listed) (tally, []string, error) {
	m, err := prepare(ctx, p, o.files)
	if err != nil {
		return tally{}, nil, err
	}
	defer m.close()
	if len(m.mutants) == 0 {
		return tally{}, nil, nil
	}
	if err := m.build(ctx); err != nil {
		return tally{}, nil, err
	}
	if err := m.judge(ctx, o.parallel); err != nil {
		return tally{}, nil, err
	}
	for _, x := range slices.SortedStableFunc(slices.Values(m.mutants), byPlace) {
		if !x.killed && !x.unbuilt {
			fmt.Fprintf(o.out, "%s:%d: %s%s\n", p.relative(o.dir, x.file), x.line, x.change, m.unreached(x))
		}
	}
	t := m.tally("")
	fmt.Fprintf(o.out, "%4.0f%%  %4d of %4d  %s (%d more do not build)\n", t.rate(), t.killed, t.all,
		p.ImportPath, m.unbuilt())
	return t, m.below(o.bounds), nil
}

// below returns the bounds that a package does not reach.
func (m *trial) below(bounds []bound) []string {
	var low []string
	for _, b := range bounds {
		if !strings.HasPrefix(m.ImportPath, b.prefix) || b.file != "" && !slices.Contains(m.GoFiles, b.file) {
			continue
		}
		if t := m.tally(b.file); t.rate() < b.percent {
			low = append(low, fmt.Sprintf("%s %.0f%%, wanted %.0f%%", strings.TrimSuffix(m.ImportPath+"/"+b.file, "/"),
				t.rate(), b.percent))
		}
	}
	return low
}
