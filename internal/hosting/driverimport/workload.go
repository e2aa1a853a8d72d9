package driverimport

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// workload is a DaemonSet, Deployment or StatefulSet.
type workload struct {
	object, namespace, name string
	daemon                  bool
	corev1.PodSpec
}

// sidecars are parts of the names of images whose work volplane does, and the roles of the driver beside them.
func sidecars() map[string]driverfile.Role {
	const controller, node = driverfile.RoleController, driverfile.RoleNode
	return map[string]driverfile.Role{
		"csi-provisioner": controller, "external-provisioner": controller, "csi-attacher": controller,
		"external-attacher": controller, "csi-resizer": controller, "external-resizer": controller,
		"csi-snapshotter": controller, "external-snapshotter": controller, "external-health-monitor-controller": controller,
		"csi-snapshot-metadata": controller, "node-driver-registrar": node, "external-health-monitor-agent": node,
		"driver-registrar": node, "livenessprobe": "",
	}
}

// sidecar says whether a container is a known sidecar, and the role of the driver beside it, if that says one.
func sidecar(c *corev1.Container) (driverfile.Role, bool) {
	known := sidecars()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if strings.Contains(baseName(c.Image), name) {
			return known[name], true
		}
	}
	return "", false
}

// baseName returns the last part of the name of an image, without tag and digest.
func baseName(image string) string { return path.Base(withoutTag(image)) }

func withoutTag(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}

// workloads takes the driver's containers. Beside one with the sidecars of a role, a workload without any that would
// have the same role is something else, as a server of mounts with an endpoint of its own.
func (m *importer) workloads(all []*unstructured.Unstructured) {
	var read []workload
	for _, u := range all {
		if w, ok := m.read(u); ok {
			read = append(read, w)
		}
	}
	beside := map[driverfile.Role]string{}
	for _, w := range read {
		for _, role := range w.sidecars() {
			beside[role] = w.object
		}
	}
	for _, w := range read {
		if other := beside[w.roles(nil)[0]]; other != "" && len(w.sidecars()) == 0 {
			m.left(w.object, "", "it has no sidecar of CSI, as %s has, and is not taken for the driver; if the driver needs "+
				"it, run it on the host as a service of its own", other)
			continue
		}
		m.workload(w)
	}
}

// sidecars returns the roles of the known sidecars; "" for one that says none.
func (w *workload) sidecars() (roles []driverfile.Role) {
	for i := range w.Containers {
		if role, known := sidecar(&w.Containers[i]); known {
			roles = append(roles, role)
		}
	}
	return roles
}

// read returns a workload, unless it is misshapen.
func (m *importer) read(u *unstructured.Unstructured) (workload, bool) {
	w := workload{
		object: u.GetKind() + "/" + u.GetName(), namespace: cmp.Or(u.GetNamespace(), m.Namespace), name: u.GetName(),
		daemon: u.GetKind() == "DaemonSet",
	}
	var spec struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &spec); err != nil {
		m.missing(w.object, "", "it cannot be read: %v", err)
		return w, false
	}
	w.PodSpec = spec.Spec.Template.Spec
	return w, true
}

// workload takes the driver's container of a workload.
func (m *importer) workload(w workload) {
	roles, others := m.split(w)
	i := slices.IndexFunc(others, func(c *corev1.Container) bool { return endpoint(c) != "" && !probes(c) })
	if i < 0 && len(roles) > 0 && len(others) == 1 {
		i = 0
	}
	for n, c := range others {
		if n != i {
			m.left(w.object, "container "+c.Name, "%s", notDriver(i >= 0))
		}
	}
	for _, c := range w.InitContainers {
		m.left(w.object, "init container "+c.Name, "volplane runs no containers; if the driver needs what %s does, do that "+
			"on the host first", cmp.Or(c.Image, "it"))
	}
	if i >= 0 {
		m.driver(w, others[i], w.roles(roles))
	}
}

func notDriver(beside bool) string {
	if beside {
		return "it is not the driver; if the driver needs what it does, do that on the host"
	}
	return "it has no CSI endpoint; if the driver needs what it does, do that on the host"
}

// split notes the sidecars of a workload and returns the roles of the driver beside them, and the other containers.
func (m *importer) split(w workload) (roles []driverfile.Role, others []*corev1.Container) {
	for i := range w.Containers {
		c := &w.Containers[i]
		role, known := sidecar(c)
		if !known {
			others = append(others, c)
			continue
		}
		m.Replaced = append(m.Replaced, Note{w.object, "container " + c.Name, "volplane does this itself"})
		if role != "" && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
		for _, arg := range c.Args {
			if name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); matters(name) {
				m.left(w.object, "container "+c.Name, "its flag %s has no effect here", arg)
			}
		}
	}
	return roles, others
}

// matters says whether a flag of a sidecar changes what volumes are like.
func matters(flag string) bool {
	return slices.Contains([]string{
		"default-fstype", "extra-create-metadata", "volume-name-prefix", "volume-name-uuid-length", "strict-topology",
		"immediate-topology", "snapshot-name-prefix", "prevent-volume-mode-conversion", "handle-volume-inuse-error",
	}, flag)
}

// probes says whether a container only probes the driver.
func probes(c *corev1.Container) bool {
	return strings.Contains(c.Name, "liveness") || slices.Contains(c.Args, "--type=liveness")
}

// roles returns the roles of a workload's driver, the controller first.
func (w *workload) roles(beside []driverfile.Role) []driverfile.Role {
	slices.Sort(beside)
	switch {
	case len(beside) > 0:
		return beside
	case w.daemon:
		return []driverfile.Role{driverfile.RoleNode}
	}
	return []driverfile.Role{driverfile.RoleController}
}

// driver takes a container as a process of a driver.
func (m *importer) driver(w workload, c *corev1.Container, roles []driverfile.Role) {
	at := "container " + c.Name
	name := m.nameOf(w, c)
	if name == "" {
		m.missing(w.object, at, "the manifests do not say the CSI name of the driver; use --name")
		return
	}
	if m.drivers[name] == nil {
		m.drivers[name] = &found{}
	}
	of := m.drivers[name]
	p := driverfile.Process{Roles: roles}
	t := m.translation(w, c, name, p)
	program, rest, why := m.program(c)
	if why != "" {
		m.missing(w.object, at, "%s", why)
		of.incomplete = true
		return
	}
	p.Exec = []string{program}
	for _, word := range rest {
		p.Exec = append(p.Exec, t.text(word))
	}
	m.environment(w, c, t, &p)
	m.account(w, &p)
	if t.bare {
		p.Socket = t.host
	}
	m.mounts(w, c, t)
	of.processes = append(of.processes, part{p, w.object, c.Ports})
}

// account takes the service account of a workload that names one, unless it or its account says that it is not used.
func (m *importer) account(w workload, p *driverfile.Process) {
	name := cmp.Or(w.ServiceAccountName, w.DeprecatedServiceAccount)
	if m.NoAccounts || name == "" {
		return
	}
	account := m.accounts[w.namespace+"/"+name]
	uses := true
	if account != nil {
		if said, found, _ := unstructured.NestedBool(account.Object, "automountServiceAccountToken"); found {
			uses = said
		}
	}
	if said := w.AutomountServiceAccountToken; said != nil {
		uses = *said
	}
	if !uses {
		return
	}
	p.ServiceAccount = w.namespace + "/" + name
	if account == nil {
		m.left(w.object, "", "its service account %s is not in the manifests; create it with its roles, or use "+
			"--service-accounts=false if the driver does not need the API server", p.ServiceAccount)
	}
}

// program returns the program of a container on this host and its arguments, or why it is not known.
func (m *importer) program(c *corev1.Container) (program string, rest []string, why string) {
	args := slices.Clone(c.Args)
	command := ""
	if len(c.Command) > 0 {
		command = c.Command[0]
		args = append(slices.Clone(c.Command[1:]), args...)
	}
	if slices.Contains([]string{"sh", "/bin/sh", "bash", "/bin/bash"}, command) {
		return "", nil, "its command is a script of a shell: write the driver's command with 'volplane driver add'"
	}
	for _, image := range []string{c.Image, withoutTag(c.Image), baseName(c.Image)} {
		if program := m.Programs[image]; program != "" {
			return program, args, ""
		}
	}
	switch {
	case command == "":
		return "", nil, "only the image " + c.Image + " knows its program: install it and use --program " +
			baseName(c.Image) + "=PATH"
	case m.ImageRoot == "" || !path.IsAbs(command):
		return "", nil, "its program is " + command + " in the image " + c.Image + ": install it and use --program " +
			baseName(c.Image) + "=PATH"
	}
	return path.Join(m.ImageRoot, command), args, ""
}

// nameOf returns the CSI name of a container's driver; empty if nothing says it.
func (m *importer) nameOf(w workload, c *corev1.Container) string {
	if m.Name != "" {
		return m.Name
	}
	for _, arg := range slices.Concat(c.Command, c.Args) {
		flag, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if slices.Contains([]string{"drivername", "driver-name", "driver", "plugin-name"}, flag) && value != "" &&
			!strings.Contains(value, "$") {
			return value
		}
	}
	known := slices.Compact(slices.Sorted(slices.Values(m.names)))
	registered := registration(w)
	if len(known) == 1 && !slices.Contains(known, registered) {
		return known[0]
	}
	if slices.Contains(known, registered) || len(known) == 0 && strings.Contains(registered, ".") {
		return registered
	}
	return ""
}

// registration returns the directory of the socket with which a registrar registers the driver, which is usually the
// driver's name.
func registration(w workload) string {
	for i := range w.Containers {
		c := &w.Containers[i]
		for _, arg := range c.Args {
			if _, value, ok := strings.Cut(arg, "kubelet-registration-path="); ok {
				return path.Base(path.Dir(driverfile.Expand(value, literals(c))))
			}
		}
	}
	return ""
}

// literals returns the variables of a container whose values are in the manifest.
func literals(c *corev1.Container) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			out[e.Name] = driverfile.Expand(e.Value, out)
		}
	}
	return out
}
