// Command chart writes the Helm chart of the manifests that volplane prints: package manifest makes the objects, once
// with placeholders for each value, and the placeholders become templates. Everything that does not concern an object
// of the manifests is in files.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", "..", "top of the repository")
	flag.Parse()
	if err := write(*root, filepath.Join(*root, "charts", "volplane")); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// write replaces the chart in a directory.
func write(root, dir string) error {
	files, err := chart(root)
	if err != nil {
		return fmt.Errorf("make the chart: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the old chart: %w", err)
	}
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a chart is public
			return fmt.Errorf("write the chart: %w", err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // a chart is public
			return fmt.Errorf("write the chart: %w", err)
		}
	}
	return nil
}
