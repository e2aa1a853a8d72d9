package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/revision"
)

func versionCommand(s *shell.Shell) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := shell.KnownOutput(output, "json", "yaml"); err != nil {
				return err
			}
			printed, err := s.PrintStructured(output, map[string]string{
				"version": s.Version, "revision": revision.Of(), "goVersion": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH,
			})
			if !printed {
				fmt.Fprintln(s.Out, "volplane", revision.With(s.Version))
			}
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}
