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
			if err := knownOutput(output, "json", "yaml"); err != nil {
				return err
			}
			printed, err := s.printStructured(output, map[string]string{
				"version": s.version, "revision": revision.Of(), "goVersion": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH,
			})
			if !printed {
				fmt.Fprintln(s.Out, "volplane", revision.With(s.version))
			}
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}
