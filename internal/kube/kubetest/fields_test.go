package kubetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"volplane.dev/volplane/internal/kube"
)

// TestUndeclared: a write may change what its right names and what is below that, and
// what the API server sets; an entry of a list or map is a field of its own.
func TestUndeclared(t *testing.T) {
	type object = map[string]any
	condition := func(kind, status string) object { return object{"type": kind, "status": status} }
	before := object{
		"metadata": object{
			"resourceVersion": "1", "annotations": object{"a.b/c": "1"}, "finalizers": []string{"x/one", "y"},
		},
		"spec":   object{"size": object{"storage": "1Gi"}, "modes": []string{"A"}, "name": "n"},
		"status": object{"conditions": []object{condition("Ready", "True"), condition("Full", "False")}},
	}
	after := object{
		"metadata": object{"resourceVersion": "2", "annotations": object{"a.b/d": "1"}, "finalizers": []string{"y", "x/two"}},
		"spec":     object{"size": object{"storage": "2Gi"}, "modes": []string{"A", "B"}, "name": "n", "namespace": "s"},
		"status":   object{"conditions": []object{condition("Full", "True"), condition("Ready", "True")}},
	}
	all := []string{
		"metadata.annotations[a.b/c]", "metadata.annotations[a.b/d]", "metadata.finalizers[x/one]",
		"metadata.finalizers[x/two]", "spec.modes", "spec.namespace", "spec.size.storage", "status.conditions[Full].status",
	}
	may := kube.Write("", "things", "update").Only("spec.size", "spec.name", kube.Finalizer("x/*"), kube.Condition("Full"))
	for _, c := range []struct {
		argues, verb, resource string
		rights                 []kube.Access
		want                   []string
	}{
		{"without a right all is told", "update", "things", nil, all},
		{
			"what is named, and no field that begins with the same letters", "update", "things",
			[]kube.Access{may},
			[]string{"metadata.annotations[a.b/c]", "metadata.annotations[a.b/d]", "spec.modes", "spec.namespace"},
		},
		{"rights add up", "update", "things", []kube.Access{
			may, kube.Write("", "things", "update").Only("spec").Shared("why", "metadata.annotations"),
		}, nil},
		{"of another verb", "patch", "things", []kube.Access{may}, all},
		{"of another resource", "update", "things/status", []kube.Access{may}, all},
	} {
		got := Undeclared(c.rights, c.verb, "", c.resource, before, after)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.argues, diff)
		}
	}
}
