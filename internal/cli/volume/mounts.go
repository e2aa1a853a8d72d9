package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/gather"
)

// spaceTime limits how long a filesystem may take to say how full it is: one behind a dead server never does.
const spaceTime = time.Second

// mounted is one use of a claim by a Pod.
type mounted struct {
	gather.Use `json:",inline"`
	// Mounted says that it is mounted; otherwise it is requested.
	Mounted bool `json:"mounted"`
	// Used and Free are in bytes; nil for paths that this host does not have.
	Used *int64 `json:"used,omitempty"`
	Free *int64 `json:"free,omitempty"`
}

func mountsCommand(s *shell.Shell) *cobra.Command {
	var all bool
	var output string
	c := &cobra.Command{
		Use:   "mounts",
		Short: "Show which claims are mounted, where and by which Pod",
		Long: `Show which claims are mounted, where, by which Pod and since when. Of what is
mounted on this host, the command also shows how much space is used and free.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listMounts(cmd.Context(), s, all, output) },
	}
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "claims of all namespaces")
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}

func listMounts(ctx context.Context, s *shell.Shell, all bool, output string) error {
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	if all {
		ns = metav1.NamespaceAll
	}
	pods, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	uses := []mounted{}
	for i := range pods.Items {
		for _, use := range gather.UsesOf(&pods.Items[i]) {
			uses = append(uses, mounted{Use: use, Mounted: use.Since != nil})
		}
	}
	slices.SortFunc(uses, func(a, b mounted) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Path, b.Path))
	})
	own := ownNode(ctx, s, client)
	for i := range uses {
		if uses[i].Node == own && uses[i].Mounted {
			uses[i].Used, uses[i].Free = space(uses[i].At)
		}
	}
	if printed, err := s.PrintStructured(output, map[string]any{"mounts": uses}); printed {
		return err
	}
	return printMounts(s, uses, all)
}

// ownNode returns the name of this host's node: the host's own, or that of the only one of an API server on this host.
func ownNode(ctx context.Context, s *shell.Shell, client kubernetes.Interface) string {
	if node, err := s.NodeOf(ctx, client, ""); err == nil && onThisHost(s) {
		return node
	}
	return s.ThisNode()
}

// space returns how much of a filesystem that is mounted at a path of this host is used and free; nil if nothing is.
func space(path string) (used, free *int64) {
	if path == "" {
		return nil, nil
	}
	type answer struct {
		fs  unix.Statfs_t
		err error
	}
	told := make(chan answer, 1)
	go func() {
		var a answer
		if a.err = mountPoint(path); a.err == nil {
			a.err = unix.Statfs(path, &a.fs)
		}
		told <- a
	}()
	select {
	case a := <-told:
		if a.err != nil {
			return nil, nil
		}
		u, f := int64(a.fs.Blocks-a.fs.Bfree)*a.fs.Frsize, int64(a.fs.Bavail)*a.fs.Frsize
		return &u, &f
	case <-time.After(spaceTime):
		return nil, nil
	}
}

// mountPoint returns an error unless something is mounted at a path: a path of another host may exist on this one.
func mountPoint(path string) error {
	var s unix.Statx_t
	// No server is asked, and no automount is started.
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, path, flags, 0, &s); err != nil {
		return err
	}
	if s.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return unix.EINVAL
	}
	return nil
}

func printMounts(s *shell.Shell, uses []mounted, all bool) error {
	if len(uses) == 0 {
		fmt.Fprintln(s.Err, "No claim is mounted")
		return nil
	}
	row, flush := shell.Table(s.Out, all)
	row("NAMESPACE", "NAME", "NODE", "PATH", "POD", "USED", "FREE", "SINCE")
	for _, u := range uses {
		since := "<not mounted>"
		if u.Since != nil {
			since = duration.HumanDuration(time.Since(u.Since.Time))
		}
		row(u.Namespace, u.Claim, u.Node, shell.OrNone(shell.PlainLine(u.Path)), u.Pod, bytesOf(u.Used), bytesOf(u.Free),
			since)
	}
	return flush()
}

func bytesOf(n *int64) string {
	if n == nil {
		return shell.OrNone("")
	}
	return diskspace.Text(*n)
}
