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

	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/up"
)

const dataDirUsage = "data directory of the control plane; set $VOLPLANE_DATA_DIR to change the default"

func backupCommand() *cobra.Command {
	var dir, output string
	c := &cobra.Command{
		Use:   "backup [FILE]",
		Short: "Save the objects and keys of the control plane to a file",
		Long: `Save the objects and keys of the control plane, and the files of the CSI drivers
that its host runs, to one file, whether it is running or not. Without FILE, the backup goes to the directory backup in the data
directory. It does not contain the data of volumes. It contains every Secret and
all keys: keep it secret.`,
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
			return printBackup(cmd.OutOrStdout(), output, file, m)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", program.DataDir(), dataDirUsage)
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json")
	return c
}

func restoreCommand() *cobra.Command {
	var dir string
	var accept bool
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore an empty or damaged data directory from a backup",
		Long: `Restore an empty or damaged data directory from a backup. The control plane must
not be running. Replaced files are kept beside the data directory; volumes and
mounts, and the files of CSI drivers that the host has, stay as they are.

When the control plane runs again, it unmounts, detaches and deletes nothing,
because it does not know the objects that were created after the backup.
'volplane orphans' lists their volumes, and events report what would have been
removed. Check them, and then run 'volplane restore --accept'.`,
		Args: func(_ *cobra.Command, args []string) error {
			if accept == (len(args) == 1) || len(args) > 1 {
				return errors.New("specify either one FILE or --accept")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if accept {
				if err := up.Accept(cmd.Context(), dir); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "the control plane of %s unmounts, detaches and deletes again\n", dir)
				return nil
			}
			r, err := backup.Restore(args[0], dir, time.Now())
			if err != nil {
				return err
			}
			printRestored(cmd.OutOrStdout(), dir, r)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "data-dir", program.DataDir(), dataDirUsage)
	c.Flags().BoolVar(&accept, "accept", false,
		"allow the restored control plane to unmount, detach and delete again")
	return c
}

func checkCommand() *cobra.Command {
	var dir, output string
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Verify a backup, or the data of the control plane",
		Long: "Verify a backup or, without FILE, the data of the control plane, whether it is running or not.\n" +
			"Nothing is changed.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				m, err := backup.Check(args[0])
				if err != nil {
					return err
				}
				return printBackup(cmd.OutOrStdout(), output, args[0], m)
			}
			m, err := backup.Examine(cmd.Context(), backup.Options{DataDir: dir, Version: version, Reason: "check"})
			if err != nil {
				return err
			}
			return printBackup(cmd.OutOrStdout(), output, dir, m)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", program.DataDir(), dataDirUsage)
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json")
	return c
}

// printBackup describes an intact backup or data directory.
func printBackup(w io.Writer, output, name string, m backup.Manifest) error {
	switch output {
	case "":
		_, err := fmt.Fprintf(w, "%s is intact: %d objects as of %s, created by volplane %s\n", name, m.Keys,
			m.Made.Format(time.RFC3339), m.Version)
		return err
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(m)
	}
	return fmt.Errorf("unknown output %q: use json", output)
}

func printRestored(w io.Writer, dir string, r backup.Restored) {
	fmt.Fprintf(w, "%s has the %d objects of %s, as of %s\n", dir, r.Keys, r.From, r.Made.Format(time.RFC3339))
	if r.Replaced != "" {
		fmt.Fprintf(w, "the replaced files are in %s\n", r.Replaced)
	}
	fmt.Fprintf(w, `
Next steps:
  volplane up --data-dir %[1]s
  volplane orphans --data-dir %[1]s    # lists volumes without a PersistentVolume, and vice versa
  volplane restore --accept --data-dir %[1]s    # allows unmounting, detaching and deleting again
`, dir)
}
