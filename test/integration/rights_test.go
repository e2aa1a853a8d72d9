package integration

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/volume"
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

// secretClass creates a class that names a Secret of the claim's namespace for every purpose.
func (p *plane) secretClass(name string) {
	p.t.Helper()
	p.createClass(name, func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"tier": "1"}
		for _, purpose := range []string{
			"provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand",
		} {
			c.Parameters["csi.storage.k8s.io/"+purpose+"-secret-name"] = purpose + "-${pvc.annotations['team']}"
			c.Parameters["csi.storage.k8s.io/"+purpose+"-secret-namespace"] = "${pvc.namespace}"
		}
	})
}

// TestSecretsOfTheDriver: the Secret that the class names for the claim is used for creation and deletion,
// with all its values, even if the class is deleted. Only references to it are stored.
func TestSecretsOfTheDriver(t *testing.T) {
	p := newPlane(t)
	p.secretClass("secret")
	red := func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{"team": "red"} }
	p.createClaim("c", "secret", red)
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, `secrets "provisioner-red" not found`)
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("the driver was called %d times without its credentials", n)
	}
	data := map[string]string{"user": "admin-of-all", "password": " s3cr\u00e9t\nof-two-lines ", "encoded": "czNjcmV0"}
	_, err := p.client.CoreV1().Secrets("default").Create(p.ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "provisioner-red"}, StringData: data}, metav1.CreateOptions{})
	p.must(err)
	p.waitForBound("c")
	p.waitForSettled()
	r, v := p.creations()[0], p.getVolume(p.getClaim("c").Spec.VolumeName)
	if !maps.Equal(r.GetSecrets(), data) || !maps.Equal(r.GetParameters(), map[string]string{"tier": "1"}) {
		t.Errorf("called with %v and %v", r.GetSecrets(), r.GetParameters())
	}
	named := func(ref *corev1.SecretReference, purpose string) bool {
		return ref != nil && *ref == corev1.SecretReference{Name: purpose + "-red", Namespace: "default"}
	}
	for what, ok := range map[string]bool{
		"deletion (S4-043)": v.Annotations[volume.AnnDeletionSecretName] == "provisioner-red" &&
			v.Annotations[volume.AnnDeletionSecretNamespace] == "default",
		"attaching (S1-120)":         named(v.Spec.CSI.ControllerPublishSecretRef, "controller-publish"),
		"staging (S1-122)":           named(v.Spec.CSI.NodeStageSecretRef, "node-stage"),
		"publishing (S1-123)":        named(v.Spec.CSI.NodePublishSecretRef, "node-publish"),
		"expansion":                  named(v.Spec.CSI.ControllerExpandSecretRef, "controller-expand"),
		"expansion at the node":      named(v.Spec.CSI.NodeExpandSecretRef, "node-expand"),
		"no value is kept":           p.holds(data) == "",
		"one call made all (S1-024)": p.calls("CreateVolume") == 1,
	} {
		if !ok {
			t.Errorf("%s: %+v %+v, values in %s", what, v.Annotations, v.Spec.CSI, p.holds(data))
		}
	}
	p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "secret", metav1.DeleteOptions{}))
	p.deleteClaim("c")
	p.nothingLeft()
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.DeleteVolumeRequest); ok && !maps.Equal(r.GetSecrets(), data) {
			t.Errorf("deleted with %v", r.GetSecrets())
		}
	}
}

// holds names an object that has one of the values, or returns "".
func (p *plane) holds(values map[string]string) string {
	p.t.Helper()
	claims, err := p.client.CoreV1().PersistentVolumeClaims("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	volumes, err := p.client.CoreV1().PersistentVolumes().List(p.ctx, metav1.ListOptions{})
	p.must(err)
	events, err := p.client.CoreV1().Events("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	intents, err := p.client.CoreV1().ConfigMaps("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	for what, list := range map[string]any{"claims": claims, "volumes": volumes, "events": events, "intents": intents} {
		text, err := json.Marshal(list)
		p.must(err)
		for _, v := range values {
			if strings.Contains(string(text), strings.TrimSpace(v)) {
				return what
			}
		}
	}
	return ""
}

// TestProvisionerListsNoSecrets: the provisioner may get Secrets by name, but not list them (S1-119).
func TestProvisionerListsNoSecrets(t *testing.T) {
	p := newPlane(t)
	user := app.User("provisioner")
	if !p.may("get", "", "secrets", user) {
		t.Error("the provisioner may not get a Secret")
	}
	for _, verb := range []string{"list", "watch", "update", "create", "delete"} {
		if p.may(verb, "", "secrets", user) {
			t.Errorf("the provisioner may %s Secrets", verb)
		}
	}
}

// TestOnlyTheTrustedMakeClasses: ordinary users may not create classes and volume objects, whose contents
// are trusted (S1-126).
func TestOnlyTheTrustedMakeClasses(t *testing.T) {
	p := newPlane(t)
	for _, d := range app.Declarations() {
		user := app.User(d.Name)
		if p.may("create", "storage.k8s.io", "storageclasses", user) {
			t.Errorf("%s may make classes", user)
		}
		if p.may("create", "", "persistentvolumes", user) != (d.Name == "provisioner") {
			t.Errorf("whether %s may make volume objects is wrong", user)
		}
	}
	for user, groups := range map[string][]string{
		"somebody": {"system:authenticated"}, "system:node:n1": {"system:nodes", "system:authenticated"},
	} {
		if p.may("create", "storage.k8s.io", "storageclasses", user, groups...) ||
			p.may("create", "", "persistentvolumes", user, groups...) {
			t.Errorf("%s may make classes or volume objects", user)
		}
	}
}
