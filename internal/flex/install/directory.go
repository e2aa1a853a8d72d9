package install

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Default is the plugin directory of Kubernetes.
const Default = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"

// ErrNoDirectory says that no directory was found to install into.
var ErrNoDirectory = errors.New("no plugin directory can be used")

// Directory is a directory in which a host looks for drivers.
type Directory struct {
	Path string `json:"path"`
	// Because says how it was found, for people.
	Because string `json:"because"`
	// Host is the kind of the host that uses the directory: HostVolplane, HostKubelet, or "" if
	// none is known to run.
	Host string `json:"host,omitempty"`
	// Root is the root directory of a bridge that uses the directory.
	Root string `json:"rootDir,omitempty"`
	// Problem says why nothing can be installed in the directory; empty if it can.
	Problem string `json:"problem,omitempty"`
	// data is the data directory of the control plane that uses the directory.
	data string
}

// DefaultRoot is the default root directory of a bridge.
const DefaultRoot = "/var/lib/volplane-flex"

// RootOf returns the root directory of the bridge in a control plane with a data directory. It is
// not below the data directory, because drivers count the components of its path (H13).
func RootOf(dataDir string) string {
	dataDir = filepath.Clean(dataDir)
	if dataDir == defaultDataDir {
		return DefaultRoot
	}
	sum := sha256.Sum256([]byte(dataDir))
	return DefaultRoot + "-" + hex.EncodeToString(sum[:4])
}

// Kinds of hosts.
const (
	HostVolplane = "volplane"
	HostKubelet  = "kubelet"
)

// usual returns the plugin directories of known platforms, the likeliest first.
func usual() []Directory {
	return []Directory{
		{Path: Default, Because: "the default of Kubernetes"},
		{Path: "/var/lib/kubelet/volumeplugins", Because: "usual where /usr is read-only (Flatcar, Magnum, kubespray)"},
		{Path: "/var/lib/kubelet/volume-plugins", Because: "usual where /usr is read-only (typhoon)"},
		{Path: "/home/kubernetes/flexvolume", Because: "usual on GKE"},
		{Path: "/etc/kubernetes/volumeplugins", Because: "usual on AKS"},
		{Path: "/etc/kubernetes/kubelet-plugins/volume/exec", Because: "usual on OpenShift 4"},
		{Path: "/etc/origin/kubelet-plugins/volume/exec", Because: "usual on OpenShift 3"},
	}
}

// Search configures the search for plugin directories. The zero value searches this host.
type Search struct {
	// Proc is the path of /proc. Root is prefixed to the paths of the platforms.
	Proc, Root string
	// DataDir is the data directory that selects a control plane if several run.
	DataDir string
	// Named says that the user has named this control plane: no other host is considered.
	Named bool
}

// Find returns the plugin directory of this machine. If a host process runs, its directory is the one,
// even if it cannot be used (F-060). Otherwise it is the first usual directory that exists and can be
// used, or else the default.
func (s Search) Find() (Directory, error) {
	running := s.Running()
	if s.Named {
		return s.named(running)
	}
	if len(running) > 0 {
		found, err := s.selectHost(running)
		if err == nil && found.Problem != "" {
			err = fmt.Errorf("%w: %s (%s): %s", ErrNoDirectory, found.Path, found.Because, found.Problem)
		}
		return found, err
	}
	all := usual()
	for i := range all {
		d := &all[i]
		d.Path = filepath.Join(s.Root, d.Path)
		d.Problem = Problem(d.Path)
		if _, err := os.Stat(d.Path); err == nil && d.Problem == "" {
			d.Because = "no host runs; it exists, and is " + d.Because
			return *d, nil
		}
	}
	likeliest := all[0]
	if likeliest.Problem == "" {
		likeliest.Because = "no host runs; it is " + likeliest.Because
		return likeliest, nil
	}
	return Directory{}, fmt.Errorf("%w: no host runs, and %s: %s. Name one with --dir, and start kubelet with "+
		"--volume-plugin-dir", ErrNoDirectory, likeliest.Path, likeliest.Problem)
}

// named returns the plugin directory of the named control plane: where it looks if it runs, or else in its data
// directory.
func (s Search) named(running []Directory) (Directory, error) {
	for _, d := range running {
		if d.data == s.DataDir {
			return d, nil
		}
	}
	d := Directory{
		Path: filepath.Join(s.DataDir, "volumeplugins"), Because: "that of the control plane in " + s.DataDir +
			", which does not run",
	}
	if d.Problem = Problem(d.Path); d.Problem != "" {
		return d, fmt.Errorf("%w: %s (%s): %s", ErrNoDirectory, d.Path, d.Because, d.Problem)
	}
	return d, nil
}

// selectHost returns the directory of the host process that is meant. It does not guess among several
// of volplane.
func (s Search) selectHost(running []Directory) (Directory, error) {
	var ours []string
	for _, d := range running {
		if d.data != "" && d.data == s.DataDir {
			return d, nil
		}
		if d.Host == HostVolplane {
			ours = append(ours, fmt.Sprintf("%s (%s)", d.Path, d.Because))
		}
	}
	if len(ours) > 1 {
		return running[0], fmt.Errorf("%w: several hosts run, which look in %s: name one with --dir, or its --data-dir",
			ErrNoDirectory, strings.Join(ours, ", "))
	}
	return running[0], nil
}

// Problem returns why drivers cannot be installed into, or started from, a directory; "" if they
// can. The directory need not exist yet.
func Problem(dir string) string {
	if !filepath.IsAbs(dir) {
		return "it is not an absolute path"
	}
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return at + " is not a directory"
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err.Error()
		}
		at = filepath.Dir(at)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return fmt.Sprintf("statfs %s: %v", at, err)
	}
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return at + " is on a read-only filesystem"
	case st.Flags&unix.ST_NOEXEC != 0:
		return at + " is on a filesystem from which no program may be started (noexec)"
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		return fmt.Sprintf("%s cannot be written to: %v", at, err)
	}
	return ""
}

// Advice returns what to do about a directory with a problem.
func (d Directory) Advice() string {
	switch {
	case d.Problem == "":
		return ""
	case d.Host == HostKubelet && strings.Contains(d.Problem, "read-only"):
		return "start kubelet with --volume-plugin-dir=/var/lib/kubelet/volumeplugins, or set volumePluginDir in its " +
			"configuration"
	case strings.Contains(d.Problem, "noexec"):
		return "mount the filesystem without noexec, for example: mount --bind " + d.Path + " " + d.Path +
			" && mount -o remount,bind,exec " + d.Path
	}
	return "name another directory with --dir"
}
