package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/adopt"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/internal/volume"
)

// takeOver fits the options to what the cluster has of the driver, and says on standard error what it found.
func takeOver(ctx context.Context, s *shell.Shell, m *manifestFlags) error {
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	facts, err := readTakeover(ctx, client, m.Driver)
	if err != nil {
		return err
	}
	facts.ManagedBy, facts.Wanted, facts.Namespace = manifest.ManagedBy, m.CSIDriver, m.Namespace
	facts.Controllers, facts.ChoseControllers, facts.Args = m.Controllers, m.given("controllers"), m.ControllerArgs
	facts.ChangedBlocks = m.Blocks != nil
	if m.given("shape") {
		facts.Shape = m.Shape
	}
	if m.given("without-nodes") {
		facts.WithoutNodes = &m.WithoutNodes
	}
	plan := adopt.Decide(facts)
	if len(plan.Refused) > 0 {
		return errors.New(strings.Join(plan.Refused, "\n"))
	}
	m.keep(plan)
	for _, note := range plan.Notes {
		fmt.Fprintln(s.Err, "note:", note)
	}
	return nil
}

// keep sets the options that the user leaves open.
func (m *manifestFlags) keep(plan adopt.Plan) {
	m.Namespace = cmp.Or(m.Namespace, plan.Namespace)
	if plan.KubeletDir != "" && !m.given("kubelet-dir") {
		m.KubeletDir = plan.KubeletDir
	}
	if !m.given("socket-dir") {
		m.SocketDir = plan.SocketDir
	}
	if plan.Driver == nil {
		m.WithoutCSIDriver = true
	} else {
		m.CSIDriver, m.DriverMeta = plan.Driver.Spec, plan.Driver.ObjectMeta
	}
	m.WithoutNodes, m.Controllers = plan.WithoutNodes, plan.Controllers
	m.ControllerArgs = slices.Concat(plan.ControllerArgs, m.ControllerArgs)
	if plan.Shape != "" {
		m.Shape = plan.Shape
	}
	m.NodeDeployment = m.NodeDeployment || plan.NodeDeployment
}

// readTakeover reads what a cluster has of drivers.
func readTakeover(ctx context.Context, client kubernetes.Interface, driver string) (adopt.Facts, error) {
	f := adopt.Facts{Driver: driver, NodeLabels: map[string]map[string]string{}}
	found, err := client.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
	if err == nil {
		f.Found = found
	} else if !apierrors.IsNotFound(err) {
		return f, fmt.Errorf("read the CSIDriver: %w", err)
	}
	csiNodes, err := client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return f, fmt.Errorf("read where the driver is registered: %w", err)
	}
	f.CSINodes = csiNodes.Items
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return f, fmt.Errorf("read the labels of the nodes: %w", err)
	}
	for _, n := range nodes.Items {
		f.NodeLabels[n.Name] = n.Labels
	}
	if f.Workloads, err = readWorkloads(ctx, client); err != nil {
		return f, err
	}
	f.InTree, err = readInTree(ctx, client, driver)
	return f, err
}

// readInTree reads the names of the volumes of a plugin of Kubernetes' own whose place a driver has taken.
func readInTree(ctx context.Context, client kubernetes.Interface, driver string) (names []string, err error) {
	all, err := gather.Every[*corev1.PersistentVolume](ctx, "volumes", metav1.ListOptions{},
		client.CoreV1().PersistentVolumes().List)
	for _, v := range all {
		if v.Spec.CSI == nil && v.Annotations[volume.AnnMigratedTo] == driver {
			names = append(names, v.Name)
		}
	}
	return names, err
}

// readWorkloads reads everything that may run a driver.
func readWorkloads(ctx context.Context, client kubernetes.Interface) ([]adopt.Workload, error) {
	var out []adopt.Workload
	add := func(kind string, m metav1.ObjectMeta, pod corev1.PodSpec) {
		out = append(out, adopt.Workload{
			Kind: kind, Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, Annotations: m.Annotations, Pod: pod,
		})
	}
	apps, all := client.AppsV1(), metav1.ListOptions{}
	deployments, err := apps.Deployments("").List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read what runs: %w", err)
	}
	for _, d := range deployments.Items {
		add("Deployment", d.ObjectMeta, d.Spec.Template.Spec)
	}
	sets, err := apps.StatefulSets("").List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read what runs: %w", err)
	}
	for _, d := range sets.Items {
		add("StatefulSet", d.ObjectMeta, d.Spec.Template.Spec)
	}
	daemons, err := apps.DaemonSets("").List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read what runs: %w", err)
	}
	for _, d := range daemons.Items {
		add("DaemonSet", d.ObjectMeta, d.Spec.Template.Spec)
	}
	return out, nil
}
