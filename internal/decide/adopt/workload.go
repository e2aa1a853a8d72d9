package adopt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/sidecar"
)

// registrationPath is the flag of registrars that names the driver's socket as the kubelet sees it.
const registrationPath = "kubelet-registration-path"

// ofDriver returns the workloads of the driver: those that name it, those created by the release of its CSIDriver, and
// those with a program of these. A workload need not name the driver, since only its program needs to know the name;
// one that names only another driver belongs to that, even with the same program and release.
func (f Facts) ofDriver() []Workload {
	may := slices.DeleteFunc(slices.Clone(f.Workloads), func(w Workload) bool {
		return !w.registers() && !w.controls() || f.ofAnother(w)
	})
	images := map[string]bool{}
	is := make([]bool, len(may))
	for i, w := range may {
		if is[i] = w.names(f.Driver) || f.released(w); is[i] {
			for _, image := range w.programs() {
				images[image] = true
			}
		}
	}
	var out []Workload
	for i, w := range may {
		if is[i] || slices.ContainsFunc(w.programs(), func(image string) bool { return images[image] }) {
			out = append(out, w)
		}
	}
	return out
}

// names says whether a driver is named in the workload.
func (w Workload) names(driver string) bool {
	return regexp.MustCompile(`(^|[^a-z0-9.-])` + regexp.QuoteMeta(driver) + `($|[^a-z0-9.-])`).MatchString(w.words())
}

// ofAnother says whether the workload names another driver that nodes have registered, and not this one.
func (f Facts) ofAnother(w Workload) bool {
	return !w.names(f.Driver) && slices.ContainsFunc(f.CSINodes, func(n storagev1.CSINode) bool {
		return slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return w.names(d.Name) })
	})
}

// released says whether the Helm release that created the CSIDriver also created the workload.
func (f Facts) released(w Workload) bool {
	const name, namespace = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
	return f.Found != nil && f.Found.Annotations[name] != "" && f.Found.Annotations[name] == w.Annotations[name] &&
		f.Found.Annotations[namespace] == w.Annotations[namespace]
}

// containers returns those that run as long as the Pod does, some of which may have started before the others.
func (w Workload) containers() []corev1.Container {
	out := slices.Clone(w.Pod.Containers)
	for _, c := range w.Pod.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

// words returns all text that may name a driver.
func (w Workload) words() string {
	var out []string
	for _, c := range w.containers() {
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

// programs returns the images that are not sidecars.
func (w Workload) programs() []string {
	var out []string
	for _, c := range w.containers() {
		if !isSidecar(c) && !slices.Contains(out, c.Image) {
			out = append(out, c.Image)
		}
	}
	return out
}

// others returns the names of the containers that are not sidecars.
func (w Workload) others() []string {
	var out []string
	for _, c := range w.containers() {
		if !isSidecar(c) {
			out = append(out, c.Name)
		}
	}
	return out
}

// registers says whether it registers drivers with kubelets.
func (w Workload) registers() bool {
	return slices.ContainsFunc(w.containers(), func(c corev1.Container) bool {
		r, ok := role(c)
		return ok && r == sidecar.Registrar || argument(c, registrationPath) != ""
	})
}

// controls says whether it has controllers of a driver. The snapshot-controller alone is the whole cluster's.
func (w Workload) controls() bool {
	return slices.ContainsFunc(w.containers(), func(c corev1.Container) bool {
		r, ok := role(c)
		return ok && r.OfController() && r != sidecar.SnapshotController || runsControllers(c)
	})
}

// runsControllers says whether a container runs volplane's controllers.
func runsControllers(c corev1.Container) bool {
	return len(c.Args) > 0 && c.Args[0] == "controller" && argument(c, "controllers") != ""
}

// isSidecar says whether a container has a place among volplane's manifests.
func isSidecar(c corev1.Container) bool {
	_, ok := role(c)
	return ok || image(c) == "volplane" || argument(c, registrationPath) != ""
}

// role returns which of upstream's sidecars a container is: by its command, by its image, or by its container name if
// the image has a vendor's name.
func role(c corev1.Container) (sidecar.Role, bool) {
	names := []string{image(c), c.Name}
	if of, ok := strings.CutPrefix(image(c), "external-"); ok {
		names = append(names, "csi-"+of)
	}
	for _, name := range append(slices.Clone(c.Command[:min(1, len(c.Command))]), names...) {
		if r, ok := sidecar.RoleOf(name); ok {
			return r, true
		}
	}
	return 0, false
}

// image returns the last part of the name of a container's image.
func image(c corev1.Container) string {
	name, _, _ := strings.Cut(path.Base(c.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// argument returns the value of a container's flag, with $(NAME) replaced from its environment.
func argument(c corev1.Container, name string) string {
	all := expand(c, slices.Concat(c.Command, c.Args))
	for i, a := range all {
		flag, value, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if flag != name || !strings.HasPrefix(a, "-") {
			continue
		}
		if !has && i+1 < len(all) {
			value = all[i+1]
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
		// Leases exist, and exclude others only in the same namespace.
		all = controlling
	}
	slices.Sort(all)
	p.namespace(f, slices.Compact(all))
	if usual := "/plugins/" + f.Driver; p.SocketDir != "" && !strings.HasSuffix(p.SocketDir, usual) {
		p.note("its socket is in %s on the nodes", p.SocketDir)
	}
}

// namespace chooses the namespace among those in which the driver runs.
func (p *Plan) namespace(f Facts, of []string) {
	switch {
	case len(of) == 0:
		p.note("no workload of the driver was found")
	case f.Namespace != "":
		if !slices.Contains(of, f.Namespace) {
			p.note("the driver runs in the namespace %s, and leader election excludes no program in another one",
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

// socketDir returns the directory of the driver's socket as the kubelet knows it, or "".
func (w Workload) socketDir() string {
	for _, c := range w.containers() {
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

// immutable says whether Kubernetes refuses to change a field of a CSIDriver.
func immutable(field string) bool {
	return slices.Contains([]string{"attachRequired", "volumeLifecycleModes"}, field)
}

// change is a field of a CSIDriver with its present value and the wanted one.
type change struct{ field, is, wanted string }

// differences returns the fields whose wanted value differs, in the order of the type. An unset field is wanted as it
// is. All fields of the type count, including later additions.
func differences(is, wanted storagev1.CSIDriverSpec) []change {
	var out []change
	was, will := reflect.ValueOf(is), reflect.ValueOf(wanted)
	for i := range will.NumField() {
		if will.Field(i).IsZero() || reflect.DeepEqual(was.Field(i).Interface(), will.Field(i).Interface()) {
			continue
		}
		name, _, _ := strings.Cut(will.Type().Field(i).Tag.Get("json"), ",")
		out = append(out, change{name, text(was.Field(i)), text(will.Field(i))})
	}
	return out
}

// text returns a value as it is written in a manifest.
func text(v reflect.Value) string {
	if v.IsZero() {
		return "not set"
	}
	out, err := json.Marshal(v.Interface())
	if err != nil {
		return fmt.Sprint(v.Interface())
	}
	return strings.Trim(string(out), `"`)
}

// overlay returns a spec with the fields that another one sets.
func overlay(is, wanted storagev1.CSIDriverSpec) storagev1.CSIDriverSpec {
	out := *is.DeepCopy()
	to, from := reflect.ValueOf(&out).Elem(), reflect.ValueOf(*wanted.DeepCopy())
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return out
}
