package gather

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestEachSceneIsReadAsAWhole: what is read for one object is enough for the answer that all objects give, in each
// scene of the explanations. Three things are left out: the fake API server has no snapshots, the whole has no
// namespaces, and the free volume that fits a claim is among all volumes, which are not read for the moment until the
// binder takes it.
func TestEachSceneIsReadAsAWhole(t *testing.T) {
	options := Options{Bridge: kube.Translation{Volume: flex.SourceOf, Inline: flex.InlineOf}}
	for _, r := range whytest.All() {
		s := whytest.New()
		r.Change(s)
		word, name, _ := strings.Cut(r.Ask, "/")
		if slices.Contains([]string{"volumesnapshot", "volumegroupsnapshot", "namespace"}, word) ||
			r.Name == "a free volume fits" {
			continue
		}
		k, err := KindOf(word)
		if err != nil {
			t.Fatal(err)
		}
		whole := New(serve(s.All), options)
		if err := whole.All(t.Context(), metav1.NamespaceAll); err != nil {
			t.Fatal(err)
		}
		answersAsTheWhole(t, r.Name, New(serve(s.All), options), whole, k, name)
	}
}

// serve returns an API with the objects of a scene. A scene's events name their objects by the UID alone.
func serve(o state.Objects) *fake.Clientset {
	all := slices.Concat(objects(o.Claims), objects(o.Volumes), objects(o.Classes), objects(o.Drivers),
		objects(o.Attachments), objects(o.Pods), objects(o.Nodes), objects(o.CSINodes), objects(o.Namespaces),
		objects(o.Leases))
	for i, e := range o.Warnings {
		e = e.DeepCopy()
		e.Name, e.Namespace = fmt.Sprint("e", i), metav1.NamespaceDefault
		for _, about := range all {
			if about := about.(metav1.Object); about.GetUID() == e.InvolvedObject.UID && about.GetNamespace() != "" {
				e.Namespace = about.GetNamespace()
			}
		}
		all = append(all, e)
	}
	return clientset.New(all...)
}

func objects[T runtime.Object](all []T) []runtime.Object {
	out := make([]runtime.Object, len(all))
	for i, o := range all {
		out[i] = o
	}
	return out
}
