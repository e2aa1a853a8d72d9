// Package noderoot finds the root directory of a host's node agent, and refuses one that cannot be used.
package noderoot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"volplane.dev/volplane/internal/durable"
)

const (
	// record is the file in a data directory that names the root directory.
	record = "root-dir"
	// maxPath is more than any path has.
	maxPath = 4 << 10
	// node is the file in a root directory that names the node of its agent.
	node = "node-name"
	// journal is the folder of a root directory with a file for each volume that is mounted.
	journal = "journal"
)

// Of returns the root directory of the control plane's node agent: the one that its last start has claimed, or else the
// default.
func Of(dataDir string) string {
	data, err := durable.ReadFile(filepath.Join(dataDir, record), maxPath)
	if path := strings.TrimSuffix(string(data), "\n"); err == nil && filepath.IsAbs(path) {
		return path
	}
	return Default(dataDir)
}

// Default returns the root directory below a data directory.
func Default(dataDir string) string { return filepath.Join(dataDir, "node") }

// Claim makes root the root directory of the control plane's node agent. It is refused while volumes are mounted below
// another one, because nothing would unmount them, and if Check refuses. It may be repeated.
func Claim(ctx context.Context, dataDir, root string) error {
	if err := Check(ctx, root); err != nil {
		return err
	}
	before := Of(dataDir)
	if before == root {
		return nil
	}
	n, err := mounted(before)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("%d volumes are mounted below %s, and would stay mounted with --root-dir %s: start with "+
			"--root-dir %s, end the Pods that use them (volplane umount, volplane delete), and change it then", n, before, root,
			before)
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	return durable.WriteFile(filepath.Join(dataDir, record), []byte(root+"\n"))
}

// mounted returns how many volumes are mounted below a root directory.
func mounted(root string) (int, error) {
	all, err := os.ReadDir(filepath.Join(root, journal))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("look for volumes mounted below %s: %w", root, err)
	}
	// Folders beside the records have what could not be read.
	return len(slices.DeleteFunc(all, fs.DirEntry.IsDir)), nil
}

// NameOf returns the name of the node whose agent uses a root directory; "" if none has.
func NameOf(root string) string {
	data, err := durable.ReadFile(filepath.Join(root, node), maxPath)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(data), "\n")
}

// CheckName refuses another node than the one whose agent has used a root directory while volumes are mounted: no Pod
// of the other node wants them, so its agent would unmount them.
func CheckName(root, name string) error {
	before := NameOf(root)
	if before == "" || before == name {
		return nil
	}
	n, err := mounted(root)
	switch {
	case err != nil:
		return err
	case n > 0:
		return fmt.Errorf("%d volumes are mounted below %s for Pods of node %s, and an agent of node %s would unmount them: "+
			"start as node %s (volplane up --name %s), end these Pods (volplane umount, volplane delete), and change the name "+
			"then", n, root, before, name, before, before)
	}
	return nil
}

// KeepName records the name of the node whose agent uses a root directory, unless CheckName refuses it. The caller is
// that agent, and has locked the directory. It may be repeated.
func KeepName(root, name string) error {
	if err := CheckName(root, name); err != nil || NameOf(root) == name {
		return err
	}
	return durable.WriteFile(filepath.Join(root, node), []byte(name+"\n"))
}

// Check refuses a root directory that is a kubelet's: both would mount and unmount the same paths, and register the
// same drivers. A kubelet that runs serves a socket there; one that has run, and may be about to run again, has left
// its state.
func Check(ctx context.Context, root string) error {
	const patience = 2 * time.Second
	socket := filepath.Join(root, "pod-resources", "kubelet.sock")
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("a kubelet is at work in %s, for it listens at %s: drain its node and stop it for good, or choose "+
			"another directory with --root-dir", root, socket)
	}
	state := filepath.Join(root, "cpu_manager_state")
	if _, err := os.Lstat(state); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a kubelet has worked in %s, for it has left %s, and may start again: if it never will "+
			"(systemctl disable --now kubelet) and its node is drained, remove this file; or choose another directory with "+
			"--root-dir", root, state)
	}
	return nil
}
