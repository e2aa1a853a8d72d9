package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/process/observe"
)

// documents returns the texts of the objects of one kind that helm renders from values.
func documents(t *testing.T, kind string, args ...string) (out []string) {
	t.Helper()
	text, complaints, err := helm(t, append([]string{
		"template", "release", committed, "--namespace=storage", "--values=" + least,
	}, args...)...)
	if err != nil {
		t.Fatalf("helm: %v\n%s", err, complaints)
	}
	for document := range strings.SplitSeq(text, "---\n") {
		if strings.Contains("\n"+document, "\nkind: "+kind+"\n") {
			out = append(out, document)
		}
	}
	return out
}

// only decodes the one document into the type of its object, which must know every field.
func only[T any](t *testing.T, documents []string) (out T) {
	t.Helper()
	if len(documents) != 1 {
		t.Fatalf("there are %d documents for a %T", len(documents), out)
	}
	if err := yaml.UnmarshalStrict([]byte(documents[0]), &out); err != nil {
		t.Fatalf("%v\n%s", err, documents[0])
	}
	return out
}

// TestPodMonitor: the operator's type has every field of the monitor, which selects exactly the Pods with controllers,
// in each shape, by a port that they have.
func TestPodMonitor(t *testing.T) {
	for shape, kinds := range map[string]map[string]bool{
		"deployment":  {"Deployment": true, "DaemonSet": false},
		"statefulset": {"StatefulSet": true, "DaemonSet": false},
		"daemonset":   {"DaemonSet": true},
	} {
		set := "--set=metrics.enabled=true,prometheus.podMonitor.enabled=true,shape=" + shape
		monitor := only[monitoringv1.PodMonitor](t, documents(t, "PodMonitor", set))
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		all := monitor.Spec.PodMetricsEndpoints
		if len(all) != 1 || all[0].Port == nil {
			t.Fatalf("%s: the endpoints are %v", shape, all)
		}
		for kind, measured := range kinds {
			// A Deployment has the same template at the same place.
			var workload appsv1.DaemonSet
			if err := yaml.Unmarshal([]byte(documents(t, kind, set)[0]), &workload); err != nil {
				t.Fatal(err)
			}
			pod := workload.Spec.Template
			if got := selector.Matches(labels.Set(pod.Labels)); got != measured {
				t.Errorf("%s: the monitor selects the Pods of the %s: %v", shape, kind, got)
			}
			if got := portsCalled(pod.Spec, *all[0].Port); (got == 1) != measured {
				t.Errorf("%s: %d ports of the %s's Pods are scraped", shape, got, kind)
			}
		}
	}
}

// portsCalled counts the ports of that name.
func portsCalled(pod corev1.PodSpec, name string) (n int) {
	for _, c := range pod.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				n++
			}
		}
	}
	return n
}

// TestPrometheusRule: the operator's type has every field of the object, and its rules are those of the file that
// Prometheus reads without an operator, except those about metrics that only volplaned serves.
func TestPrometheusRule(t *testing.T) {
	rule := only[monitoringv1.PrometheusRule](t, documents(t, "PrometheusRule",
		"--set=prometheus.rules.enabled=true,prometheus.rules.additionalLabels.release=p"))
	text, err := os.ReadFile(top + "/deploy/prometheus/volplane.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var plain monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(text, &plain); err != nil {
		t.Fatal(err)
	}
	if len(plain.Groups) != 1 {
		t.Fatalf("the file has %d groups", len(plain.Groups))
	}
	var left []string
	all := &plain.Groups[0].Rules
	*all = slices.DeleteFunc(*all, func(r monitoringv1.Rule) bool {
		out := slices.ContainsFunc(observe.Families(), func(f observe.Family) bool {
			return f.From == observe.FromPlane && strings.Contains(r.Expr.String(), f.Name)
		})
		if out {
			left = append(left, r.Alert)
		}
		return out
	})
	if line(rule.Spec) != line(plain) {
		t.Errorf("the rules of the chart are\n%s\nand those of the file\n%s", line(rule.Spec), line(plain))
	}
	want := []string{"VolplaneClaimWaits", "VolplaneNodeSilent", "VolplaneStoreFull", "VolplanePoolFull"}
	if !slices.Equal(left, want) {
		t.Errorf("%v are left out, want %v", left, want)
	}
	if rule.Labels["release"] != "p" || rule.Namespace != "storage" {
		t.Errorf("the object is %v", rule.ObjectMeta)
	}
}
