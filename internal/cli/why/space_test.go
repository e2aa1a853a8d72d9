package why

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/gather/gathertest"
)

// TestSpaceThatIsNotThere: for an object in a namespace that does not exist, the error
// names the namespace; for a user who may not read namespaces, it names the object.
func TestSpaceThatIsNotThere(t *testing.T) {
	k, err := gather.KindOf("pvc")
	if err != nil {
		t.Fatal(err)
	}
	client := gathertest.Town()
	for ns, want := range map[string]string{
		"nosuch": "namespace nosuch does not exist; to list all: volplane get ns",
		"ns":     "pvc/x does not exist in namespace ns; to list all namespaces: volplane get pvc -A",
	} {
		if err := notFoundError(t.Context(), client, k, ns, "x"); err == nil || err.Error() != want {
			t.Errorf("%s: %v", ns, err)
		}
	}
	client.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
	})
	if err := requireNamespace(t.Context(), client, "nosuch"); err != nil {
		t.Error(err)
	}
}
