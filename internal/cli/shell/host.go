//go:build linux

package shell

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/process/identity"
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/internal/process/options"
)

// ReachAny has clients with a configuration connect to another control plane that this host knows if theirs does not
// answer.
func (s *Shell) ReachAny(config *rest.Config) {
	identity.Reach(config, noderoot.Of(s.Flags.DataDir), func(before, now string) {
		_, _ = fmt.Fprintf(s.Err, "The control plane at %s has not answered, the one at %s has.\n", before, now)
	})
}

// NodeOf returns the node to work on: the named one, else that of this host, else the only one.
func (s *Shell) NodeOf(ctx context.Context, client kubernetes.Interface, name string) (string, error) {
	return doors.Node(ctx, client, name, s.ThisNode())
}

// ThisNode returns the name of the node whose agent has used this host's data directory, else the host's.
func (s *Shell) ThisNode() string {
	return cmp.Or(noderoot.NameOf(noderoot.Of(s.Flags.DataDir)), options.HostName())
}

// standalone is the name of the program that contains the control plane.
const standalone = "volplaned"

// FindStandalone returns the path of volplaned: in the directory of this program, else in PATH.
func FindStandalone() (string, error) {
	own, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(own), standalone)
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(standalone)
	if err != nil {
		return "",
			fmt.Errorf("the program of the control plane, %s, is neither in the directory of this program nor in PATH: "+
				"install it from the same release, or build it with 'make build'", standalone)
	}
	return path, nil
}

// RootDir returns p as an absolute path; if p is empty, that of the control plane's node agent.
func (s *Shell) RootDir(p string) (string, error) {
	dataDir, err := s.Path(s.Flags.DataDir, "")
	if err != nil {
		return "", err
	}
	return s.Path(cmp.Or(p, noderoot.Of(dataDir)), "")
}

// Path returns p as an absolute path; if p is empty, the default below the data directory.
func (s *Shell) Path(p, otherwise string) (string, error) {
	p = cmp.Or(p, filepath.Join(s.Flags.DataDir, otherwise))
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", fmt.Errorf("find directory %s: %w", p, err)
	}
	return abs, nil
}
