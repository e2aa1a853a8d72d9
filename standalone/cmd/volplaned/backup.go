package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/up"
)

const dataDirUsage = "data directory of the control plane (default from $VOLPLANE_DATA_DIR)"

func backupCommand() *cobra.Command {
	var dir, output string
	c := &cobra.Command{
		Use:   "backup [FILE]",
		Short: "Save the control plane's objects and keys to a file, while it runs or not",
		Long: `Save the control plane's objects and keys to a file, while it runs or not. Without
FILE it goes to the folder backup of the data directory. The data of volumes are
not in it. It holds every Secret and the keys of everybody: keep it from others.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := backup.Name(dir, "manual", time.Now())
			if len(args) > 0 {
				file = args[0]
			} else if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				return err
			}
			m, err := backup.Save(cmd.Context(), backup.Options{DataDir: dir, Version: version, Reason: "manual"}, file)
			if err != nil {
				return err
			}
			return tellBackup(cmd.OutOrStdout(), output, file, m)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", dataDir(), dataDirUsage)
	c.Flags().StringVarP(&output, "output", "o", "", "json prints what the backup says of itself")
	return c
}

func restoreCommand() *cobra.Command {
	var dir string
	var accept bool
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make an empty or damaged data directory of a backup",
		Long: `Make an empty or damaged data directory of a backup. No control plane may run over
it. What is replaced is kept beside it; volumes and mounts stay as they are.

When the control plane runs again it unmounts, detaches and deletes nothing,
because it may not know of what was made since the backup. 'volplane orphans' and
the events at volumes and nodes name that. When you have looked,
'volplane restore --accept' lets it go on.`,
		Args: func(_ *cobra.Command, args []string) error {
			if accept == (len(args) == 1) || len(args) > 1 {
				return errors.New("give either one FILE or --accept")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if accept {
				return up.Accept(cmd.Context(), dir)
			}
			r, err := backup.Restore(args[0], dir, time.Now())
			if err != nil {
				return err
			}
			tellRestored(cmd.OutOrStdout(), dir, r)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "data-dir", dataDir(), dataDirUsage)
	c.Flags().BoolVar(&accept, "accept", false,
		"say that what the restored control plane does not know of may be taken away")
	return c
}

func checkCommand() *cobra.Command {
	var dir, output string
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a backup, or what the control plane keeps",
		Long: "Check a backup, or without FILE what the control plane keeps, while it runs or not.\nNothing of that " +
			"is changed.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				m, err := backup.Check(args[0])
				if err != nil {
					return err
				}
				return tellBackup(cmd.OutOrStdout(), output, args[0], m)
			}
			m, err := backup.Examine(cmd.Context(), backup.Options{DataDir: dir, Version: version, Reason: "check"})
			if err != nil {
				return err
			}
			return tellBackup(cmd.OutOrStdout(), output, dir, m)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", dataDir(), dataDirUsage)
	c.Flags().StringVarP(&output, "output", "o", "", "json prints what was found")
	return c
}

// tellBackup prints what is in a backup or data directory that is whole.
func tellBackup(w io.Writer, output, name string, m backup.Manifest) error {
	switch output {
	case "":
		_, err := fmt.Fprintf(w, "%s is whole: %d objects as of %s, made by volplane %s\n", name, m.Keys,
			m.Made.Format(time.RFC3339), m.Version)
		return err
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(m)
	}
	return fmt.Errorf("output %q: only json is known", output)
}

func tellRestored(w io.Writer, dir string, r backup.Restored) {
	fmt.Fprintf(w, "%s has the %d objects of %s, as of %s\n", dir, r.Keys, r.From, r.Made.Format(time.RFC3339))
	if r.Replaced != "" {
		fmt.Fprintf(w, "what was there before is in %s\n", r.Replaced)
	}
	fmt.Fprintf(w, `
Go on with
  volplane up --data-dir %s
  volplane orphans --data-dir %s    # what drivers have and the control plane has not, and the reverse
  volplane restore --accept         # when you have looked: nothing is unmounted, detached or deleted before
`, dir, dir)
}
