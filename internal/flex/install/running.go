package install

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// maxConfig is how many bytes of a kubelet's configuration are read.
const maxConfig = 1 << 20

// process is a running process that may be a host.
type process struct {
	id   int
	dir  string // the path of the process in /proc
	args []string
}

// defaultDataDir is the default data directory of a control plane.
const defaultDataDir = "/var/lib/volplane"

// Running returns the directories of the hosts that run, those of volplane first.
func (s Search) Running() []Directory {
	var ours, kubelets []Directory
	for _, p := range s.processes() {
		if dir, root, why := p.volplane(); dir != "" {
			d := p.directory(dir, HostVolplane, why)
			d.Root, d.data = p.path(root), p.dataDir()
			ours = append(ours, d)
		} else if dir, why := p.kubelet(); dir != "" {
			kubelets = append(kubelets, p.directory(dir, HostKubelet, why))
		}
	}
	all := append(ours, kubelets...)
	return slices.CompactFunc(all, func(a, b Directory) bool { return a.Path == b.Path })
}

func (s Search) processes() []process {
	proc := cmp.Or(s.Proc, "/proc")
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var all []process
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(line) == 0 {
			continue // the process has ended, or is a kernel thread
		}
		all = append(all, process{id: id, dir: dir, args: strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")})
	}
	slices.SortFunc(all, func(a, b process) int { return a.id - b.id })
	return all
}

// directory returns the Directory that a process uses. A process in a container must see the same
// directory as this process does.
func (p process) directory(path, host, why string) Directory {
	d := Directory{
		Path: p.path(path), Host: host, Because: fmt.Sprintf("%s, process %d, %s", filepath.Base(p.args[0]), p.id, why),
	}
	if d.Problem = Problem(d.Path); d.Problem == "" && p.seesAnother(d.Path) {
		d.Problem = "the process is in a container and sees another directory there: mount the host's into it"
	}
	return d
}

// path returns a path in a process's arguments as an absolute path.
func (p process) path(path string) string {
	if !filepath.IsAbs(path) {
		if at, err := os.Readlink(filepath.Join(p.dir, "cwd")); err == nil {
			return filepath.Join(at, path)
		}
	}
	return filepath.Clean(path)
}

func (p process) seesAnother(path string) bool {
	theirs, err := os.Stat(filepath.Join(p.dir, "root", path))
	if err != nil {
		return false // it does not exist yet, or this process may not see it
	}
	here, err := os.Stat(path)
	return err == nil && !os.SameFile(here, theirs)
}

// dataDir returns the data directory of a control plane, and "" for other processes.
func (p process) dataDir() string {
	if filepath.Base(p.args[0]) != "volplaned" {
		return ""
	}
	return p.path(cmp.Or(p.flag("data-dir"), p.environment("VOLPLANE_DATA_DIR"), defaultDataDir))
}

// volplane returns the plugin directory of a volplane process that runs drivers, and the bridge's root directory.
func (p process) volplane() (dir, root, why string) {
	verb := strings.Join(p.args[1:min(len(p.args), 3)], " ")
	switch program := filepath.Base(p.args[0]); {
	case program == "volplane" && strings.HasPrefix(verb, "node"):
		// Without the flag the process has no bridge.
		return p.flag("volume-plugin-dir"), cmp.Or(p.flag("flex-root-dir"), DefaultRoot), "--volume-plugin-dir"
	case program == "volplane" && verb == "flex bridge":
		return cmp.Or(p.flag("dir"), Default), cmp.Or(p.flag("root-dir"), DefaultRoot), "the bridge"
	case program != "volplaned" || !strings.HasPrefix(verb, "up"):
		return "", "", ""
	}
	data := p.dataDir()
	root = RootOf(data)
	if dir = p.flag("volume-plugin-dir"); dir != "" {
		return dir, root, "--volume-plugin-dir"
	}
	return filepath.Join(data, "volumeplugins"), root, "in its data directory"
}

// kubelet returns the plugin directory of a process that is a kubelet, or contains one.
func (p process) kubelet() (dir, why string) {
	switch name := filepath.Base(p.args[0]); {
	case strings.HasPrefix(name, "k3s"):
		return p.embeddedKubelet()
	case name == "hyperkube" && len(p.args) > 1 && p.args[1] == "kubelet":
	case name != "kubelet":
		return "", ""
	}
	if dir := p.flag("volume-plugin-dir"); dir != "" {
		return dir, "--volume-plugin-dir"
	}
	// Later files override earlier ones.
	for _, file := range slices.Backward(p.configs()) {
		if dir := p.configured(file); dir != "" {
			return dir, "volumePluginDir in " + file
		}
	}
	return Default, "which names no other than the default"
}

// embeddedKubelet returns the plugin directory of a kubelet that is a part of another program, if a flag names it.
func (p process) embeddedKubelet() (dir, why string) {
	for _, arg := range p.flags("kubelet-arg") {
		if dir, found := strings.CutPrefix(strings.TrimLeft(arg, "-"), "volume-plugin-dir="); found {
			return dir, "--kubelet-arg volume-plugin-dir"
		}
	}
	return "", ""
}

// configs returns the paths of a kubelet's configuration files.
func (p process) configs() []string {
	files := []string{p.flag("config")}
	drops := p.flag("config-dir")
	if drops == "" {
		return files
	}
	found, err := filepath.Glob(filepath.Join(p.inside(drops), "*.conf"))
	if err != nil {
		return files
	}
	for _, file := range found {
		files = append(files, filepath.Join(drops, filepath.Base(file)))
	}
	return files
}

// configured returns the plugin directory in a kubelet's configuration file.
func (p process) configured(file string) string {
	if file == "" {
		return ""
	}
	info, err := os.Stat(p.inside(file))
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxConfig {
		return ""
	}
	data, err := os.ReadFile(p.inside(file))
	if err != nil {
		return ""
	}
	var config struct {
		VolumePluginDir string `json:"volumePluginDir"`
	}
	if yaml.Unmarshal(data, &config) != nil {
		return ""
	}
	return config.VolumePluginDir
}

// inside returns the path by which this process reaches a file that another process sees at path.
func (p process) inside(file string) string {
	if !filepath.IsAbs(file) {
		return filepath.Join(p.dir, "cwd", file)
	}
	return filepath.Join(p.dir, "root", file)
}

// flag returns the last value of a flag, which is the one that counts.
func (p process) flag(name string) string {
	values := p.flags(name)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

func (p process) flags(name string) []string {
	var values []string
	for i, arg := range p.args {
		bare := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		if bare == arg {
			continue
		}
		if value, found := strings.CutPrefix(bare, name+"="); found {
			values = append(values, value)
		} else if bare == name && i+1 < len(p.args) {
			values = append(values, p.args[i+1])
		}
	}
	return values
}

func (p process) environment(name string) string {
	data, err := os.ReadFile(filepath.Join(p.dir, "environ"))
	if err != nil {
		return ""
	}
	for line := range bytes.SplitSeq(data, []byte{0}) {
		if value, found := bytes.CutPrefix(line, []byte(name+"=")); found {
			return string(value)
		}
	}
	return ""
}

// inUse returns where volumes of a driver are mounted on this host, according to the mount table,
// no matter which process mounted them (F-038).
func inUse(name decide.Name) ([]string, error) {
	points, err := mount.Below("/")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, p := range points {
		if at, _ := volumeAt(p.Path, name); at != "" {
			all = append(all, p.Path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// volumesIn returns the number of volumes that are mounted at paths of inUse. A volume that is
// mounted for its node and for Pods counts once for each Pod.
func volumesIn(used []string, name decide.Name) int {
	pods, devices := map[string]bool{}, map[string]bool{}
	named := map[string]bool{}
	for _, path := range used {
		at, device := volumeAt(path, name)
		if device {
			devices[at] = true
			continue
		}
		pods[at], named[filepath.Base(at)] = true, true
	}
	n := len(pods)
	for at := range devices {
		if !named[filepath.Base(at)] {
			n++
		}
	}
	return n
}

// volumeAt returns the directory of the driver's volume that a path is in, and whether it is that
// of a device: .../volumes/VENDOR~DRIVER/NAME of a Pod, or .../flexvolume/VENDOR/DRIVER/mounts/NAME
// of a node. It is "" for other paths.
func volumeAt(path string, name decide.Name) (dir string, device bool) {
	for _, place := range []string{
		"/volumes/" + name.Dir() + "/", "/plugins/kubernetes.io/flexvolume/" + name.String() + "/mounts/",
	} {
		if above, rest, found := strings.Cut(path, place); found && rest != "" {
			volume, _, _ := strings.Cut(rest, "/")
			return above + place + volume, strings.HasSuffix(place, "/mounts/")
		}
	}
	return "", false
}
