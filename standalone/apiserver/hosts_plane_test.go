package apiserver_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

// TestANodeIsNoControlPlane: a node cannot claim to run a control plane, but may remove such a claim.
func TestANodeIsNoControlPlane(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	say := func(by kubernetes.Interface, what string, sub ...string) error {
		body := `{"metadata":{"annotations":{"` + volume.AnnControlPlane + `":` + what + `}}}`
		_, err := by.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, []byte(body), metav1.PatchOptions{},
			sub...)
		return err
	}
	const refused = "may not say that a control plane runs there"
	c.expect("it says so", say(c.agent, `"yes"`), refused)
	c.expect("the same with its status", say(c.agent, `"yes"`, "status"), refused)
	c.expect("a person says so", say(c.admin, `"yes"`), "")
	c.expect("it changes what is said", say(c.agent, `"no"`), refused)
	_, err := c.agent.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"team":"red"}}}`), metav1.PatchOptions{})
	c.expect("it writes something else", err, "")
	c.expect("it takes it back", say(c.agent, `null`), "")
}
