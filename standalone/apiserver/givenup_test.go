package apiserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/standalonetest"
)

// TestAGivenUpControlPlane works until another one has given it up: neither when other nodes are, nor when its name is
// revoked as that of a node, nor at its own word. From then on it knows, and creates no Node, until it is admitted
// again.
func TestAGivenUpControlPlane(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t, app.RBAC()...)
	m, want, admin := s.Members(), wantAnswer(t), standalonetest.Client(t, s, "")
	agent := standalonetest.Client(t, s, "system:node:one", identity.NodesGroup, identity.PlanesGroup)
	revoke := func(node string, lost bool) (int, []byte) {
		return post(t, standalonetest.Remote(t, s), identity.PathRevocation,
			encode(t, identity.Revoke{Node: node, Lost: lost}))
	}
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	enters := func() error {
		_, err := agent.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "one", Annotations: map[string]string{volume.AnnControlPlane: "yes"},
		}}, metav1.CreateOptions{})
		return err
	}
	is("it is admitted", m.Admit(t.Context(), "one", 4), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	is("it ends", m.Stay(ctx), nil)
	ended := make(chan error, 1)
	go func() { ended <- m.Stay(t.Context()) }()
	want("another node", 200, "")(revoke("two", true))
	want("a node with its name", 200, "")(revoke("one", false))
	want("itself", 409, "on node one itself")(revoke("one", true))
	is("it stays", m.Admitted(t.Context()), nil)

	maps := admin.CoreV1().ConfigMaps(volume.NamespaceSystem)
	all := must(maps.Get(t.Context(), membership.Revoked, metav1.GetOptions{}))(t)
	if all.Data["lost_two"] == "" || all.Data["lost_one"] != "" {
		t.Fatalf("lost are %v", all.Data)
	}
	all.Data["lost_one"] = "5" // by another control plane
	must(maps.Update(t.Context(), all, metav1.UpdateOptions{}))(t)
	is("it was given up", <-ended, membership.ErrGivenUp)
	is("it asks", m.Admitted(t.Context()), membership.ErrGivenUp)
	is("it starts again", m.Admit(t.Context(), "one", 4), membership.ErrGivenUp)
	if err := enters(); err == nil || !strings.Contains(err.Error(), "invite --control-plane one") {
		t.Errorf("its Node: %v", err)
	}
	is("it is invited again", m.Admit(t.Context(), "one", 5), nil)
	is("its Node", enters(), nil)
}
