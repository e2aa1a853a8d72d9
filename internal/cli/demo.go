package cli

import "github.com/spf13/cobra"

func (s *shell) demoCommand() *cobra.Command {
	return &cobra.Command{Use: "demo", RunE: func(*cobra.Command, []string) error { return nil }}
}
