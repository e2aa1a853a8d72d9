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

	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/external"
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
	c.Flags().StringVar(&dir, "data-dir", options.DataDir(), dataDirUsage)
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json")
	return c
}

func restoreCommand() *cobra.Command {
	var dir string
	var accept bool
	var to external.Options
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore an empty or damaged data directory from a backup",
		Long: `Restore an empty or damaged data directory from a backup. The control plane must
not be running. Replaced files are kept beside the data directory; volumes and
mounts, and the files of CSI drivers that the host has, stay as they are.

When the control plane runs again, it unmounts, detaches and deletes nothing,
because it does not know the objects that were created after the backup.
'volplane orphans' lists their volumes, and events report what would have been
removed. Check them, and then run 'volplane restore --accept'.

With --etcd-servers, and if the data directory uses an etcd that others run, the
objects go there; there must be nothing below its --etcd-prefix.`,
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
			r, err := backup.Restore(cmd.Context(), args[0], dir, to, time.Now())
			if err != nil {
				return err
			}
			printRestored(cmd.OutOrStdout(), dir, r)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "data-dir", options.DataDir(), dataDirUsage)
	c.Flags().BoolVar(&accept, "accept", false,
		"allow the restored control plane to unmount, detach and delete again")
	storeFlags(c, &to)
	return c
}

func migrateStoreCommand() *cobra.Command {
	var dir, to string
	var store external.Options
	c := &cobra.Command{
		Use:   "migrate-store --to external|embedded",
		Short: "Move the objects of a stopped control plane to an etcd that others run, or back",
		Long: `Move the objects of a control plane that does not run to an etcd that others run
(--to external, with --etcd-servers and --etcd-prefix, below which there must be
nothing), or from there to an etcd in the data directory (--to embedded). Both are
read afterwards, to prove that nothing is missing. What was copied stays where it was.
Node agents of other hosts must be restarted after the control plane.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case to == "external" && store.IsZero():
				return errors.New("--to external needs --etcd-servers and --etcd-prefix")
			case to == "embedded" && !store.IsZero():
				return errors.New("--to embedded needs no --etcd-servers: the data directory says where the objects are")
			case to != "external" && to != "embedded":
				return fmt.Errorf("--to %.40q is neither external nor embedded", to)
			}
			o := backup.Options{DataDir: dir, Version: version}
			m, err := backup.Move(cmd.Context(), o, store, time.Now())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d objects were moved; both copies have the hash %.12s\n"+
				"what was copied is still in %s\n", m.Keys, m.Hash, m.Left)
			return err
		},
	}
	c.Flags().StringVar(&dir, "data-dir", options.DataDir(), dataDirUsage)
	c.Flags().StringVar(&to, "to", "", "external or embedded")
	storeFlags(c, &store)
	return c
}

// storeFlags adds the flags that name an etcd, as kube-apiserver spells them.
func storeFlags(c *cobra.Command, o *external.Options) {
	f := c.Flags()
	f.StringSliceVar(&o.Servers, "etcd-servers", nil, "URLs of the members of an etcd that others run and that has the "+
		"objects (default that of the last start, or an etcd in the data directory)")
	f.StringVar(&o.CAFile, "etcd-cafile", "", "certificate of the authority that has signed those of the members")
	f.StringVar(&o.CertFile, "etcd-certfile", "", "certificate by which the members know this control plane")
	f.StringVar(&o.KeyFile, "etcd-keyfile", "", "key of --etcd-certfile")
	f.StringVar(&o.Prefix, "etcd-prefix", "", "what all keys of this control plane begin with, such as /volplane/SITE")
}

func checkCommand() *cobra.Command {
	var dir, output string
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Verify a backup, or the data of the control plane",
		Long: "Verify a backup or, without FILE, the data of the control plane, whether it is running or not.\n" +
			"Nothing is changed. For the data it also says which store has them, and how its members are.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				m, err := backup.Check(args[0])
				if err != nil {
					return err
				}
				return printBackup(cmd.OutOrStdout(), output, args[0], m)
			}
			store, err := backup.Describe(cmd.Context(), dir)
			if err != nil {
				return err
			}
			m, err := backup.Examine(cmd.Context(), backup.Options{DataDir: dir, Version: version, Reason: "check"})
			if err != nil {
				return err
			}
			return printExamined(cmd.OutOrStdout(), output, dir, examined{m, store})
		},
	}
	c.Flags().StringVar(&dir, "data-dir", options.DataDir(), dataDirUsage)
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
		return encode(w, m)
	}
	return fmt.Errorf("unknown output %q: use json", output)
}

// examined is a data directory and its store.
type examined struct {
	backup.Manifest
	Store external.Description `json:"store"`
}

// printExamined describes an intact data directory and where its objects are.
func printExamined(w io.Writer, output, dir string, e examined) error {
	if output == "json" {
		return encode(w, e)
	}
	if err := printBackup(w, output, dir, e.Manifest); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, e.Store)
	return err
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
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
