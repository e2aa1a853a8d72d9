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

// ErrNoDirectory says that there is no directory to install into. The message
// tells what was looked at.
var ErrNoDirectory = errors.New("no plugin directory can be used")

// Directory is one in which a host looks for drivers.
type Directory struct {
	Path string `json:"path"`
	// Because says how it was found, for people.
	Because string `json:"because"`
	// Host is who looks there: HostVolplane, HostKubelet, or "" where none is
	// known to run.
	Host string `json:"host,omitempty"`
	// Root is the root directory of a bridge that looks there.
	Root string `json:"rootDir,omitempty"`
	// Problem says why nothing can be installed there; empty when it can.
	Problem string `json:"problem,omitempty"`
	// data is the data directory of the control plane that looks there.
	data string
}

// DefaultRoot is the root directory of a bridge unless it is told otherwise.
const DefaultRoot = "/var/lib/volplane-flex"

// RootOf returns the root directory of the bridge in a control plane with a data
// directory. It is no part of that: drivers count the parts of its path (H13).
func RootOf(dataDir string) string {
	dataDir = filepath.Clean(dataDir)
	if dataDir == defaultDataDir {
		return DefaultRoot
	}
	sum := sha256.Sum256([]byte(dataDir))
	return DefaultRoot + "-" + hex.EncodeToString(sum[:4])
}

// Hosts of drivers.
const (
	HostVolplane = "volplane"
	HostKubelet  = "kubelet"
)

// usual are the plugin directories of known platforms, the likeliest first.
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

// Search says where to look for plugin directories. The zero value is this host.
type Search struct {
	// Proc is /proc; Root stands before the paths of the platforms.
	Proc, Root string
	// DataDir is the data directory of the control plane that is meant where
	// several run.
	DataDir string
}

// Find returns the directory in which the host of this machine looks, and those
// that were considered beside it. A host that runs decides: where it looks,
// there the driver has to be, usable or not (F-060). Without one it is the first
// usual directory that exists and can be used, or else the default.
func (s Search) Find() (Directory, []Directory, error) {
	if running := s.Running(); len(running) > 0 {
		i, err := s.meant(running)
		found, beside := running[i], without(running, i)
		if err == nil && found.Problem != "" {
			err = fmt.Errorf("%w: %s (%s): %s", ErrNoDirectory, found.Path, found.Because, found.Problem)
		}
		return found, beside, err
	}
	var all []Directory
	for _, d := range usual() {
		d.Path = filepath.Join(s.Root, d.Path)
		d.Problem = Problem(d.Path)
		all = append(all, d)
	}
	for i, d := range all {
		if _, err := os.Stat(d.Path); err == nil && d.Problem == "" {
			d.Because = "no host runs; it exists, and is " + d.Because
			return d, without(all, i), nil
		}
	}
	if all[0].Problem == "" {
		all[0].Because = "no host runs; it is " + all[0].Because
		return all[0], all[1:], nil
	}
	return Directory{}, all,
		fmt.Errorf("%w: no host runs, and %s: %s. Name one with --dir, and start kubelet with --volume-plugin-dir",
			ErrNoDirectory, all[0].Path, all[0].Problem)
}

// meant returns which of the hosts that run is meant. Nobody guesses among
// several of volplane's.
func (s Search) meant(running []Directory) (int, error) {
	var ours []string
	for i, d := range running {
		if d.data != "" && d.data == s.DataDir {
			return i, nil
		}
		if d.Host == HostVolplane {
			ours = append(ours, fmt.Sprintf("%s (%s)", d.Path, d.Because))
		}
	}
	if len(ours) > 1 {
		return 0, fmt.Errorf("%w: several hosts run, which look in %s: name one with --dir, or its --data-dir",
			ErrNoDirectory, strings.Join(ours, ", "))
	}
	return 0, nil
}

func without(all []Directory, i int) []Directory {
	return append(append([]Directory{}, all[:i]...), all[i+1:]...)
}

// Problem says why drivers cannot be installed into, or started from, a
// directory that exists or would be made; "" when they can.
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
