package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/workshop/finding"
)

// TestWild examines drivers that are written as those of other people are: what works in Kubernetes
// does not fail, and what does not is found.
func TestWild(t *testing.T) {
	t.Parallel()
	const dir = "testdata/wild"
	drivers, err := os.ReadDir(dir)
	if err != nil || len(drivers) < 10 {
		t.Fatal(len(drivers), err)
	}
	for _, d := range drivers {
		t.Run(d.Name(), func(t *testing.T) {
			t.Parallel()
			script, err := os.ReadFile(filepath.Join(dir, d.Name()))
			if err != nil {
				t.Fatal(err)
			}
			r, _, err := examined(t, string(script), func(x *Doctor) { x.Options = map[string]string{"share": t.TempDir()} })
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("works in Kubernetes: %v, here: %v\n", r.Works.Kubernetes, r.Works.Volplane)
			for _, f := range r.Findings {
				// How long init takes depends on the machine.
				if f.Level != finding.Pass && f.Check != "init-time" {
					text += strings.TrimSuffix(fmt.Sprintf("%s %s %v", f.Level, f.Check, f.Breaks), " []") + "\n"
				}
			}
			golden.Equal(t, "testdata/wild-"+d.Name()+".txt", text)
		})
	}
}
