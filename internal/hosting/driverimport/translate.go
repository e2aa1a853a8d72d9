package driverimport

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/volume"
)

// endpoint returns the path of the socket at which a container serves CSI; empty if it does not.
func endpoint(c *corev1.Container) string {
	vars := literals(c)
	if value := vars[driverfile.VarEndpoint]; value != "" {
		return socketPath(value)
	}
	flags := []string{"endpoint", "csi-endpoint", "csi-address", "csi-bind-address"}
	all := slices.Concat(c.Command, c.Args)
	for i, arg := range all {
		flag, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || !slices.Contains(flags, flag) {
			continue
		}
		if !given && i+1 < len(all) {
			value = all[i+1]
		}
		return socketPath(driverfile.Expand(value, vars))
	}
	return ""
}

// socketPath returns the path in an address of CSI; empty if it is not a path.
func socketPath(address string) string {
	address = strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//")
	if !path.IsAbs(address) {
		return ""
	}
	return path.Clean(address)
}

// translation is what the paths of a container mean on the host.
type translation struct {
	nodeDir string
	// socket is the path of the socket in the container, and host the one on the host.
	socket, host string
	// bare says that a text had the path of the socket without a scheme.
	bare bool
	// mounts are the paths of the host by those in the container, and used those that a text had.
	mounts map[string]string
	used   map[string]bool
}

func (m *importer) translation(w workload, c *corev1.Container, name string, p driverfile.Process) *translation {
	t := &translation{
		nodeDir: m.NodeDir, socket: endpoint(c), mounts: map[string]string{}, used: map[string]bool{},
		host: driverfile.Driver{Name: name}.Socket(p, path.Join(m.NodeDir, "plugins")),
	}
	for _, at := range c.VolumeMounts {
		for _, v := range w.Volumes {
			if v.Name == at.Name && v.HostPath != nil {
				t.mounts[path.Clean(at.MountPath)] = t.kubelet(path.Join(v.HostPath.Path, at.SubPath))
			}
		}
	}
	return t
}

// kubelet replaces the kubelet's directory by the node agent's.
func (t *translation) kubelet(p string) string {
	if rest, below := within(p, volume.KubeletDir); below {
		return path.Join(t.nodeDir, rest)
	}
	return p
}

// within returns the rest of a path that is a directory or below it.
func within(p, dir string) (string, bool) {
	if p == dir || dir == "/" {
		return strings.TrimPrefix(p, dir), true
	}
	rest, below := strings.CutPrefix(p, dir+"/")
	return rest, below
}

// text returns a word of the container's command, or the value of a variable, for the host.
func (t *translation) text(word string) string {
	if t.socket != "" {
		for _, scheme := range []string{"unix://", "unix:"} {
			word = strings.ReplaceAll(word, scheme+t.socket, "$("+driverfile.VarEndpoint+")")
		}
	}
	// A path begins the word, or follows a sign that separates it from what is before, or the scheme of an address.
	paths := regexp.MustCompile(`(?:^|[=:,;\s"']|://)(/[^=:,;\s"'/][^=:,;\s"']*)`)
	var out strings.Builder
	end := 0
	for _, at := range paths.FindAllStringSubmatchIndex(word, -1) {
		out.WriteString(word[end:at[2]] + t.path(word[at[2]:at[3]]))
		end = at[3]
	}
	return out.String() + word[end:]
}

// path returns the path on the host of one in the container.
func (t *translation) path(p string) string {
	if t.socket != "" && p == t.socket {
		t.bare = true
		return t.host
	}
	best := ""
	for at := range t.mounts {
		if _, below := within(p, at); below && len(at) > len(best) {
			best = at
		}
	}
	if best == "" {
		return t.kubelet(p)
	}
	t.used[best] = true
	rest, _ := within(p, best)
	if strings.HasSuffix(p, "/") {
		return path.Join(t.mounts[best], rest) + "/"
	}
	return path.Join(t.mounts[best], rest)
}

// environment takes the variables of a container.
func (m *importer) environment(w workload, c *corev1.Container, t *translation, p *driverfile.Process) {
	at := "container " + c.Name
	p.Env = map[string]string{}
	for _, from := range c.EnvFrom {
		m.allOf(w, at, from, t, p)
	}
	for _, e := range c.Env {
		switch {
		case e.Name == driverfile.VarEndpoint:
			// The host sets it.
		case e.ValueFrom == nil && e.Name == driverfile.VarNode:
			m.left(w.object, at, "volplane sets the variable %s to the name of the node, and not to %q", e.Name, e.Value)
		case e.ValueFrom == nil:
			p.Env[e.Name] = t.text(e.Value)
		default:
			m.valueFrom(w, at, e, t, p)
		}
	}
	if len(p.Env) == 0 {
		p.Env = nil
	}
}

// allOf takes all values of a ConfigMap or Secret as variables.
func (m *importer) allOf(w workload, at string, from corev1.EnvFromSource, t *translation, p *driverfile.Process) {
	if ref := from.ConfigMapRef; ref != nil {
		if values, ok := data(m.configs[w.namespace+"/"+ref.Name]); ok {
			for _, key := range slices.Sorted(maps.Keys(values)) {
				p.Env[from.Prefix+key] = t.text(values[key])
			}
			return
		}
		m.left(w.object, at, "its variables are those of ConfigMap %s, which is not in the manifests", ref.Name)
	}
	if ref := from.SecretRef; ref != nil {
		secret := m.secrets[w.namespace+"/"+ref.Name]
		if secret == nil {
			m.left(w.object, at, "its variables are those of Secret %s, which is not in the manifests; name them with "+
				"--env-from-secret", ref.Name)
			return
		}
		for _, field := range []string{"data", "stringData"} {
			values, _, _ := unstructured.NestedMap(secret.Object, field)
			for _, key := range slices.Sorted(maps.Keys(values)) {
				p.EnvFromSecret = append(p.EnvFromSecret, driverfile.SecretVariable{
					Name: from.Prefix + key, Secret: w.namespace + "/" + ref.Name, Key: key,
				})
			}
		}
	}
}

// data returns the values of a ConfigMap.
func data(config *unstructured.Unstructured) (map[string]string, bool) {
	if config == nil {
		return nil, false
	}
	values, _, err := unstructured.NestedStringMap(config.Object, "data")
	return values, err == nil
}

// valueFrom takes a variable whose value is elsewhere.
func (m *importer) valueFrom(w workload, at string, e corev1.EnvVar, t *translation, p *driverfile.Process) {
	switch from := e.ValueFrom; {
	case from.SecretKeyRef != nil:
		p.EnvFromSecret = append(p.EnvFromSecret, driverfile.SecretVariable{
			Name: e.Name, Secret: w.namespace + "/" + from.SecretKeyRef.Name, Key: from.SecretKeyRef.Key,
			Optional: ptr.Deref(from.SecretKeyRef.Optional, false),
		})
	case from.ConfigMapKeyRef != nil:
		values, _ := data(m.configs[w.namespace+"/"+from.ConfigMapKeyRef.Name])
		value, ok := values[from.ConfigMapKeyRef.Key]
		if !ok {
			m.left(w.object, at, "the value of %s is %s of ConfigMap %s, which the manifests do not have", e.Name,
				from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Name)
			return
		}
		p.Env[e.Name] = t.text(value)
	case from.FieldRef != nil:
		m.field(w, at, e.Name, from.FieldRef.FieldPath, p)
	default:
		m.left(w.object, at, "the value of %s is that of a container; set it if the driver needs it", e.Name)
	}
}

// field takes a variable with a field of the Pod.
func (m *importer) field(w workload, at, name, field string, p *driverfile.Process) {
	values := map[string]string{
		"spec.nodeName": "$(" + driverfile.VarNode + ")", "metadata.namespace": w.namespace, "metadata.name": w.name,
		"spec.serviceAccountName": w.ServiceAccountName,
	}
	value, known := values[field]
	switch {
	case !known:
		m.left(w.object, at, "the value of %s is %s of a Pod, and the driver runs in none; set it if the driver needs it",
			name, field)
	case name != driverfile.VarNode:
		p.Env[name] = value
	case field != "spec.nodeName":
		m.left(w.object, at, "volplane sets the variable %s to the name of the node, and not to %s", name, field)
	}
}

// mounts says what of a container's file system is elsewhere on the host.
func (m *importer) mounts(w workload, c *corev1.Container, t *translation) {
	for _, v := range c.VolumeMounts {
		to := path.Clean(v.MountPath)
		i := slices.IndexFunc(w.Volumes, func(of corev1.Volume) bool { return of.Name == v.Name })
		if _, socket := within(t.socket, to); socket || i < 0 {
			continue
		}
		at := "container " + c.Name
		switch of := w.Volumes[i]; {
		case of.HostPath != nil:
			if t.mounts[to] != to && path.Clean(of.HostPath.Path) != to && !t.used[to] {
				m.left(w.object, at, "it finds %s of the host at %s; set it to the path on the host, or create a link",
					t.mounts[to],
					to)
			}
		case of.ConfigMap != nil:
			m.left(w.object, at, "it reads ConfigMap %s from files in %s; write them there", of.ConfigMap.Name, to)
		case of.Secret != nil:
			m.left(w.object, at, "it reads Secret %s from files in %s; write them there, readable for root only",
				of.Secret.SecretName, to)
		case of.EmptyDir != nil:
			m.left(w.object, at, "it writes temporary files to %s; make this directory", to)
		default:
			m.left(w.object, at, "it has the volume %s at %s; make what it needs there", of.Name, to)
		}
	}
}
