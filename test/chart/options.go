package main

import (
	"fmt"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/sidecar/manifest"
)

// These texts and numbers are placeholders for values. The driver's name is so long that names of objects have it in a
// shorter form.
const (
	wordDriver    = "word-driver.with-a-name-of.more-than-forty.characters"
	wordNamespace = "word-namespace"
	wordName      = "word-name"
)

// sentinels returns where the value of each of them is.
func sentinels() words {
	return words{
		{wordDriver, ".Values.driver.name"},
		{strings.ReplaceAll(wordDriver, ".", "-"), `include "volplane.dashed" .`},
		{manifest.Base(wordDriver), `include "volplane.base" .`},
		{wordNamespace, ".Release.Namespace"},
		{"word-role", `include "volplane.roleName" .`},
		{"word-account", `include "volplane.account" .`},
		{wordName, `include "volplane.fullname" .`},
		{"word-app", `include "volplane.name" .`},
		{"word-instance", ".Release.Name"},
		{"word-manager", ".Release.Service"},
		{"word-chart", `include "volplane.chart" .`},
		{"word-version", ".Chart.AppVersion"},
		{"word-image", `include "volplane.image" (list .Values.image .Chart.AppVersion)`},
		{"word-driver-image", `include "volplane.image" (list .Values.driver.image "")`},
		{"word-pull", ".Values.image.pullPolicy"},
		{"word-driver-pull", ".Values.driver.image.pullPolicy"},
		{"word-controllers", `join "," .Values.controllers`},
		{"/word-kubelet", ".Values.kubeletDir"},
		{"/word-socket", `include "volplane.socketDir" .`},
		{"word-controller-account", `include "volplane.controllerAccount" .`},
		{"word-node-account", `include "volplane.nodeAccount" .`},
		{"word-blocks-secret", ".Values.changedBlocks.secret"},
		{"word-controller-class", ".Values.controller.priorityClassName"},
		{"word-node-class", ".Values.node.priorityClassName"},
		{"10001", ".Values.controller.replicas"},
		{"10002", ".Values.controller.livenessProbe.healthPort"},
		{"10003", ".Values.node.livenessProbe.healthPort"},
		{"10004", ".Values.metrics.port"},
	}
}

// options returns options in which every value is a placeholder.
func options(shape string) manifest.Options {
	o := manifest.Defaults()
	o.Driver, o.Namespace, o.Name = wordDriver, wordNamespace, wordName
	o.App, o.Instance, o.ManagedBy = "word-app", "word-instance", "word-manager"
	o.Labels = map[string]string{
		"helm.sh/chart": "word-chart", "app.kubernetes.io/version": "word-version", among(".Values.commonLabels"): "x",
	}
	o.Image, o.DriverImage, o.PullPolicy, o.DriverPullPolicy = "word-image", "word-driver-image", "word-pull",
		"word-driver-pull"
	o.PullSecrets = []corev1.LocalObjectReference{{Name: at(2, ".Values.imagePullSecrets")}}
	o.Container = container(".Values.driver")
	o.Shape, o.Replicas, o.Spread = shape, 10001, false
	if shape == manifest.StatefulSet {
		o.Replicas = 1
	}
	o.Controllers, o.ControllerArgs = []string{"provisioner"}, []string{among(".Values.controller.extraArgs")}
	o.WithoutRBAC = true
	o.KubeletDir, o.SocketDir = "/word-kubelet", "/word-socket"
	o.NodeUpdates = appsv1.DaemonSetUpdateStrategy{
		Type: appsv1.DaemonSetUpdateStrategyType(at(1, ".Values.node.updateStrategy")),
	}
	o.Node = part(".Values.node")
	o.Node.Account, o.Node.PriorityClass = "word-node-account", "word-node-class"
	if shape == manifest.DaemonSet {
		// There is one container of the driver, and one account.
		o.Controller, o.Node.Args = manifest.Part{}, nil
	} else {
		o.Controller = part(".Values.controller")
		o.Controller.Account, o.Controller.PriorityClass = "word-controller-account", "word-controller-class"
	}
	o.Resources = map[string]corev1.ResourceRequirements{}
	for name, values := range map[string]string{
		"controllers": ".Values.controller.resources", "registrar": ".Values.node.registrar.resources",
		"liveness": ".Values.livenessProbe.resources", "controller-driver": ".Values.controller.driver.resources",
		"node-driver": ".Values.node.driver.resources", "snapshot-metadata": ".Values.changedBlocks.resources",
	} {
		o.Resources[name] = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: at(3, values)}}}
	}
	return o
}

// container returns what a driver's container gets from values.
func container(values string) manifest.Container {
	return manifest.Container{
		Args: []string{among(values + ".args")}, Env: []corev1.EnvVar{{Name: among(values + ".env")}},
		// A mount must be of a volume, and at a path of its own.
		Volumes: []corev1.Volume{{Name: values, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMedium(among(values + ".volumes")),
		}}}},
		Mounts: []corev1.VolumeMount{{Name: values, MountPath: "/" + values, SubPath: among(values + ".volumeMounts")}},
	}
}

// part returns the options of a workload's Pods; the driver's container has values of its own.
func part(values string) manifest.Part {
	return manifest.Part{
		Container:    container(values + ".driver"),
		NodeSelector: map[string]string{among(values + ".nodeSelector"): "x"},
		Tolerations:  []corev1.Toleration{{Key: at(2, values+".tolerations")}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: at(7, values+".affinity")}},
			}}},
		}},
		Labels:      map[string]string{among(values + ".podLabels"): "x"},
		Annotations: map[string]string{among(values + ".podAnnotations"): "x"},
	}
}

// variant is what options are if a condition holds.
type variant struct {
	condition string
	change    func(*manifest.Options)
}

// servesBlocks is the condition that changed blocks are served.
const servesBlocks = ".Values.changedBlocks.enabled"

// variants returns the conditions of a shape, which are independent of each other.
func variants(shape string) []variant {
	out := []variant{
		// Its container comes before that of the health.
		{servesBlocks, func(o *manifest.Options) { o.Blocks = &manifest.Blocks{Secret: "word-blocks-secret", CA: "x"} }},
		{".Values.node.hostNetwork", func(o *manifest.Options) { o.HostNetwork = true }},
		{".Values.node.livenessProbe.enabled", func(o *manifest.Options) { o.Node.HealthPort = 10003 }},
		{".Values.metrics.enabled", func(o *manifest.Options) { o.MetricsPort = 10004 }},
	}
	switch shape {
	case manifest.DaemonSet:
		return append(out, variant{onNodes, func(o *manifest.Options) { o.NodeDeployment = true }})
	case manifest.Deployment:
		out = append(out, variant{".Values.controller.spread", func(o *manifest.Options) { o.Spread = true }})
	}
	return append(out, variant{".Values.controller.livenessProbe.enabled", func(o *manifest.Options) {
		o.Controller.HealthPort = 10002
	}}, variant{`include "volplane.ownTmp" .`, func(o *manifest.Options) { o.Controller.Mounts[0].MountPath = "/tmp" }})
}

// authority replaces the certificate in what describes the service of changed blocks.
func authority(n *node) {
	n.field("spec").field("caCert").scalar = expression("b64enc .Values.changedBlocks.caCert | quote")
}

// csiDriver replaces the spec of a CSIDriver: a field is rendered if the values have it. Two of them follow from
// the controllers otherwise.
func csiDriver(n *node) {
	spec := n.field("spec")
	spec.fields = nil
	of := reflect.TypeFor[storagev1.CSIDriverSpec]()
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		value := ".Values.csiDriver." + name
		field := &node{key: name, scalar: expression("toJson " + value)}
		if by := map[string]string{"attachRequired": "attacher", "storageCapacity": "capacity"}[name]; by != "" {
			field.scalar = expression(fmt.Sprintf(`kindIs "invalid" %s | ternary (has %q .Values.controllers) %s`, value, by, value))
		} else {
			field.when = []string{`not (kindIs "invalid" ` + value + ")"}
		}
		spec.fields = append(spec.fields, field)
	}
}
