package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/revision"
)

func (s *shell) versionCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "":
				fmt.Fprintln(s.Out, "volplane", revision.With(s.version))
				return nil
			case "json", "yaml":
				return s.printValue(map[string]string{
					"version": s.version, "revision": revision.Of(), "goVersion": runtime.Version(),
					"platform": runtime.GOOS + "/" + runtime.GOARCH,
				}, output)
			}
			return fmt.Errorf("unknown output %q: use json or yaml", output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}
