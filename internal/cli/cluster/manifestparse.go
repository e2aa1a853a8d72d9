package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"volplane.dev/volplane/internal/sidecar/manifest"
)

// parse fills the options from the flags that are texts.
func (m *manifestFlags) parse() error {
	for _, step := range []func() error{
		m.parsePulls, m.parseUpdates, m.parseContainers, m.parseHost, m.parseResources, m.parseBlocks,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, t := range m.tolerations {
		toleration, err := parseToleration(t)
		if err != nil {
			return err
		}
		m.Controller.Tolerations = append(m.Controller.Tolerations, toleration)
	}
	return nil
}

func (m *manifestFlags) parsePulls() error {
	for flag, policy := range map[string]string{
		"image-pull-policy": m.pullPolicy, "driver-image-pull-policy": m.driverPulling,
	} {
		if policy == "" {
			continue
		}
		if err := oneOf(policy, pullPolicies()); err != nil {
			return fmt.Errorf("--%s %w", flag, err)
		}
	}
	m.PullPolicy, m.DriverPullPolicy = corev1.PullPolicy(m.pullPolicy), corev1.PullPolicy(m.driverPulling)
	for _, name := range m.pullSecrets {
		m.PullSecrets = append(m.PullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return nil
}

// parseBlocks reads the authority of the certificate with which changed blocks are served.
func (m *manifestFlags) parseBlocks() error {
	switch {
	case m.blocksSecret == "" && m.blocksCA == "":
		return nil
	case m.blocksSecret == "" || m.blocksCA == "":
		return errors.New("--changed-blocks-secret and --changed-blocks-ca belong together")
	}
	text, err := os.ReadFile(m.blocksCA)
	if err != nil {
		return fmt.Errorf("--changed-blocks-ca: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return fmt.Errorf("--changed-blocks-ca: %s has no certificate in PEM", m.blocksCA)
	}
	m.Blocks = &manifest.Blocks{Secret: m.blocksSecret, CA: string(text)}
	return nil
}

func (m *manifestFlags) parseUpdates() error {
	if m.maxUnavailable == "0" {
		m.NodeUpdates = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		return nil
	}
	if !regexp.MustCompile(`^[1-9][0-9]{0,5}%?$`).MatchString(m.maxUnavailable) {
		return fmt.Errorf("--max-unavailable %q: use a number or a share, such as 10%%", m.maxUnavailable)
	}
	of := intstr.Parse(m.maxUnavailable)
	m.NodeUpdates.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &of}
	return nil
}

// parseContainers reads what the driver's container gets in each part.
func (m *manifestFlags) parseContainers() error {
	for _, c := range []struct {
		prefix       string
		env, volumes []string
		to           *manifest.Container
	}{
		{"", m.env, m.volumes, &m.Container},
		{"controller-", m.controllerEnv, m.controllerVolumes, &m.Controller.Container},
		{"node-", m.nodeEnv, m.nodeVolumes, &m.Node.Container},
	} {
		for _, text := range c.env {
			e, err := parseEnv(text)
			if err != nil {
				return fmt.Errorf("--%senv %q: %w", c.prefix, text, err)
			}
			c.to.Env = append(c.to.Env, e)
		}
		for i, text := range c.volumes {
			v, mount, err := parseVolume(fmt.Sprint(c.prefix, "volume-", i), text)
			if err != nil {
				return fmt.Errorf("--%svolume %q: %w", c.prefix, text, err)
			}
			c.to.Volumes, c.to.Mounts = append(c.to.Volumes, v), append(c.to.Mounts, mount)
		}
	}
	return nil
}

// parseEnv reads NAME=VALUE or NAME@KIND/NAME/KEY.
func parseEnv(text string) (corev1.EnvVar, error) {
	bad := fmt.Errorf("use NAME=VALUE, NAME@secret/NAME/KEY or NAME@configmap/NAME/KEY")
	part := regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]*)([=@])((?s).*)$`).FindStringSubmatch(text)
	if part == nil {
		return corev1.EnvVar{}, bad
	}
	e := corev1.EnvVar{Name: part[1]}
	if part[2] == "=" {
		e.Value = part[3]
		return e, nil
	}
	from := strings.Split(part[3], "/")
	if len(from) != 3 || slices.Contains(from, "") {
		return e, bad
	}
	of := corev1.LocalObjectReference{Name: from[1]}
	switch from[0] {
	case "secret":
		e.ValueFrom = &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: of, Key: from[2]},
		}
	case "configmap":
		e.ValueFrom = &corev1.EnvVarSource{
			ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: of, Key: from[2]},
		}
	default:
		return e, bad
	}
	return e, nil
}

// parseVolume reads PATH=KIND[/NAME].
func parseVolume(name, text string) (corev1.Volume, corev1.VolumeMount, error) {
	at, what, _ := strings.Cut(text, "=")
	kind, of, named := strings.Cut(what, "/")
	v := corev1.Volume{Name: name}
	mount := corev1.VolumeMount{Name: name, MountPath: at}
	switch {
	case kind == "secret" && of != "":
		v.Secret = &corev1.SecretVolumeSource{SecretName: of}
		mount.ReadOnly = true
	case kind == "configmap" && of != "":
		v.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: of}}
		mount.ReadOnly = true
	case kind == "emptydir" && !named:
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	case what == "emptydir/memory":
		v.EmptyDir = &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	default:
		return v, mount, fmt.Errorf("use PATH=secret/NAME, PATH=configmap/NAME, PATH=emptydir or PATH=emptydir/memory")
	}
	return v, mount, nil
}

// parseHost reads the directories of the nodes, HOST[:CONTAINER][:TYPE].
func (m *manifestFlags) parseHost() error {
	for i, text := range m.hostPaths {
		part := strings.Split(text, ":")
		is := corev1.HostPathDirectory
		if last := part[len(part)-1]; len(part) > 1 && !path.IsAbs(last) {
			is, part = corev1.HostPathType(last), part[:len(part)-1]
		}
		if len(part) > 2 || is != corev1.HostPathDirectory && is != corev1.HostPathDirectoryOrCreate {
			return fmt.Errorf("--host-path %q: use HOST[:CONTAINER][:TYPE] with the type Directory or DirectoryOrCreate", text)
		}
		name := fmt.Sprint("host-", i)
		m.Node.Volumes = append(m.Node.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: part[0], Type: &is},
		}})
		m.Node.Mounts = append(m.Node.Mounts, corev1.VolumeMount{Name: name, MountPath: part[len(part)-1]})
	}
	return nil
}

// parseResources reads CONTAINER:RESOURCE=QUANTITY,....
func (m *manifestFlags) parseResources() error {
	for _, of := range []struct {
		flag  string
		texts []string
		set   func(*corev1.ResourceRequirements, corev1.ResourceList)
	}{
		{"requests", m.requests, func(r *corev1.ResourceRequirements, l corev1.ResourceList) { r.Requests = l }},
		{"limits", m.limits, func(r *corev1.ResourceRequirements, l corev1.ResourceList) { r.Limits = l }},
	} {
		for _, text := range of.texts {
			container, list, _ := strings.Cut(text, ":")
			all := corev1.ResourceList{}
			for one := range strings.SplitSeq(list, ",") {
				name, quantity, _ := strings.Cut(one, "=")
				q, err := resource.ParseQuantity(quantity)
				if name == "" || err != nil {
					return fmt.Errorf("--%s %q: use CONTAINER:cpu=10m,memory=64Mi", of.flag, text)
				}
				all[corev1.ResourceName(name)] = q
			}
			r := m.Resources[container]
			of.set(&r, all)
			m.Resources[container] = r
		}
	}
	return nil
}

// parseToleration reads KEY[=VALUE][:EFFECT].
func parseToleration(text string) (corev1.Toleration, error) {
	taint, effect, _ := strings.Cut(text, ":")
	key, value, equal := strings.Cut(taint, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if equal {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	effects := []corev1.TaintEffect{
		"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute,
	}
	if key == "" || !slices.Contains(effects, t.Effect) {
		return t, fmt.Errorf("--toleration %q: use KEY[=VALUE][:EFFECT] with the effect NoSchedule, PreferNoSchedule or "+
			"NoExecute", text)
	}
	return t, nil
}
