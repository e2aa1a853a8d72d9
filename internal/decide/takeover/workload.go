package takeover

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// registrationPath is the flag of registrars that names the driver's socket as the kubelet sees it.
const registrationPath = "kubelet-registration-path"

// ofDriver returns the workloads of the driver: those that name it, those that the release of its CSIDriver has made,
// and those with a program of these. A driver may be named nowhere, since only its program needs to know its name.
func (f Facts) ofDriver() []Workload {
	name := regexp.MustCompile(`(^|[^a-z0-9.-])` + regexp.QuoteMeta(f.Driver) + `($|[^a-z0-9.-])`)
	images := map[string]bool{}
	is := make([]bool, len(f.Workloads))
	for i, w := range f.Workloads {
		if is[i] = (w.registers() || w.controls()) && (name.MatchString(w.words()) || f.released(w)); is[i] {
			for _, image := range w.programs() {
				images[image] = true
			}
		}
	}
	var out []Workload
	for i, w := range f.Workloads {
		shares := slices.ContainsFunc(w.programs(), func(image string) bool { return images[image] })
		if is[i] || shares && (w.registers() || w.controls()) {
			out = append(out, w)
		}
	}
	return out
}

// released says whether the Helm release that has made the CSIDriver has also made the workload.
func (f Facts) released(w Workload) bool {
	const name, namespace = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
	return f.Found != nil && f.Found.Annotations[name] != "" && f.Found.Annotations[name] == w.Annotations[name] &&
		f.Found.Annotations[namespace] == w.Annotations[namespace]
}

// words returns everything in which a driver is named.
func (w Workload) words() string {
	var out []string
	for _, c := range w.Pod.Containers {
		out = append(append(out, c.Command...), c.Args...)
		for _, e := range c.Env {
			out = append(out, e.Value)
		}
	}
	for _, v := range w.Pod.Volumes {
		if v.HostPath != nil {
			out = append(out, v.HostPath.Path)
		}
	}
	return strings.Join(out, "\n")
}

// programs returns the images that are no sidecars.
func (w Workload) programs() []string {
	var out []string
	for _, c := range w.Pod.Containers {
		if !isSidecar(c) && !slices.Contains(out, c.Image) {
			out = append(out, c.Image)
		}
	}
	return out
}

// registers says whether it registers drivers with kubelets.
func (w Workload) registers() bool {
	return slices.ContainsFunc(w.Pod.Containers, func(c corev1.Container) bool {
		return called(c, "csi-node-driver-registrar", "node-driver-registrar") || argument(c, registrationPath) != ""
	})
}

// controls says whether it has controllers of a driver.
func (w Workload) controls() bool {
	return slices.ContainsFunc(w.Pod.Containers, func(c corev1.Container) bool {
		return called(c, "csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter") ||
			len(c.Args) > 0 && c.Args[0] == "controller" && argument(c, "controllers") != ""
	})
}

func isSidecar(c corev1.Container) bool {
	return called(c, "csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller",
		"csi-node-driver-registrar", "node-driver-registrar", "livenessprobe", "csi-external-health-monitor-controller",
		"volplane") || argument(c, registrationPath) != ""
}

// called says whether a container's image has one of these names.
func called(c corev1.Container, names ...string) bool {
	image, _, _ := strings.Cut(path.Base(c.Image), "@")
	image, _, _ = strings.Cut(image, ":")
	return slices.Contains(names, image)
}

// argument returns the value of a flag of a container, in which $(NAME) stands for its environment.
func argument(c corev1.Container, name string) string {
	all := slices.Concat(c.Command, c.Args)
	for i, a := range all {
		flag, value, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if flag != name || !strings.HasPrefix(a, "-") {
			continue
		}
		if !has && i+1 < len(all) {
			value = all[i+1]
		}
		for _, e := range c.Env {
			value = strings.ReplaceAll(value, "$("+e.Name+")", e.Value)
		}
		return value
	}
	return ""
}

// places finds where the driver runs.
func (p *Plan) places(f Facts, mine []Workload) {
	var all, controlling []string
	for _, w := range mine {
		all = append(all, w.Namespace)
		if w.controls() {
			controlling = append(controlling, w.Namespace)
		}
		p.SocketDir, p.KubeletDir = cmp.Or(p.SocketDir, w.socketDir()), cmp.Or(p.KubeletDir, w.kubeletDir())
	}
	if len(controlling) > 0 {
		// Leases are there, and exclude others only in the same namespace.
		all = controlling
	}
	slices.Sort(all)
	p.namespace(f, slices.Compact(all))
	if usual := "/plugins/" + f.Driver; p.SocketDir != "" && !strings.HasSuffix(p.SocketDir, usual) {
		p.note("its socket is in %s on the nodes", p.SocketDir)
	}
}

// namespace decides about the namespace, of those in which the driver runs.
func (p *Plan) namespace(f Facts, of []string) {
	switch {
	case len(of) == 0:
		p.note("no workload of the driver was found")
	case f.Namespace != "":
		if !slices.Contains(of, f.Namespace) {
			p.note("the driver runs in the namespace %s, and leader election excludes nobody in another one",
				strings.Join(of, ", "))
		}
	case len(of) == 1:
		p.Namespace = of[0]
		p.note("the driver runs in the namespace %s", p.Namespace)
	default:
		p.Refused = append(p.Refused, "workloads of the driver are in the namespaces "+strings.Join(of, ", ")+
			": name the one of its controllers with --namespace")
	}
}

// socketDir returns the directory of the driver's socket as the kubelet is told; empty if it is not told.
func (w Workload) socketDir() string {
	for _, c := range w.Pod.Containers {
		if at := argument(c, registrationPath); path.IsAbs(at) {
			return path.Dir(path.Clean(at))
		}
	}
	return ""
}

// kubeletDir returns the root directory of the kubelets, by that of registration sockets; empty if that is not mounted.
func (w Workload) kubeletDir() string {
	for _, v := range w.Pod.Volumes {
		if v.HostPath == nil {
			continue
		}
		if dir, ok := strings.CutSuffix(path.Clean(v.HostPath.Path), "/plugins_registry"); ok {
			return dir
		}
	}
	return ""
}
