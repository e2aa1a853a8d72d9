package integration

import (
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/servers"
)

// may says whether a user has a right on all objects of a resource, according to the API server.
func (p *plane) may(verb, group, resource, user string, groups ...string) bool {
	p.t.Helper()
	got, err := p.client.AuthorizationV1().SubjectAccessReviews().Create(p.ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource},
		}}, metav1.CreateOptions{})
	p.must(err)
	return got.Status.Allowed
}

// TestRights: what the API server allows the controllers, a node, and a user without any rights.
func TestRights(t *testing.T) {
	p := &plane{t: t, ctx: t.Context(), client: standalonetest.Client(t, servers.Borrow(t), "")}
	const storage = "storage.k8s.io"
	attacher, provisioner := app.User("attacher"), app.User("provisioner")
	users := map[string][]string{
		"somebody": {"system:authenticated"}, "system:node:n1": {"system:nodes", "system:authenticated"},
	}
	for _, d := range app.Declarations() {
		users[app.User(d.Name)] = nil
	}
	for _, c := range []struct{ argues, verb, group, resource, user string }{
		{
			"the attacher alone writes the status of attachments (S1-072)", "patch", storage, "volumeattachments/status",
			attacher,
		},
		{"which it patches", "update", storage, "volumeattachments/status", ""},
		{"the provisioner alone makes volume objects (S1-126)", "create", "", "persistentvolumes", provisioner},
		{"administrators alone make classes, whose contents are trusted (S1-126)", "create", storage, "storageclasses", ""},
	} {
		for user, groups := range users {
			if got := p.may(c.verb, c.group, c.resource, user, groups...); got != (user == c.user) {
				t.Errorf("%s: whether %s may %s %s: %v", c.argues, user, c.verb, c.resource, got)
			}
		}
	}
	for _, verb := range []string{"get", "list", "watch", "update", "create", "delete"} {
		if got := p.may(verb, "", "secrets", provisioner); got != (verb == "get") {
			t.Errorf("the provisioner gets Secrets by name (S1-119): whether it may %s them: %v", verb, got)
		}
	}
}
