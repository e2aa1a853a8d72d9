package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

// contents sends a request about VolumeSnapshotContents. They are served a moment after the server is ready.
func (c *hostCluster) contents(client kubernetes.Interface, verb, path, body string) error {
	r := client.Discovery().RESTClient().Verb(verb).
		AbsPath("/apis/" + volume.GroupSnapshot + "/v1/" + volume.ResourceSnapshotContents + path)
	if r = r.Body([]byte(body)).SetHeader("Content-Type", "application/json"); verb == http.MethodPatch {
		r = r.SetHeader("Content-Type", string(types.MergePatchType))
	}
	return r.Do(c.t.Context()).Error()
}

// TestAHostAndItsSnapshots: a host says how the snapshots of its own volumes are, and nothing else.
func TestAHostAndItsSnapshots(t *testing.T) {
	c := newHostCluster(t)
	content := func(name, driver, node string) {
		t.Helper()
		served := func(context.Context) (bool, error) {
			return c.contents(c.admin, http.MethodPost, "", fmt.Sprintf(`{"apiVersion":"snapshot.storage.k8s.io/v1",
				"kind":"VolumeSnapshotContent","metadata":{"name":%q,"annotations":{%q:%q},"finalizers":[%q]},"spec":{"driver":%q,
				"deletionPolicy":"Delete","source":{"volumeHandle":"v"},"volumeSnapshotRef":{"namespace":"ns","name":"s"}}}`,
				name, volume.AnnProvisionedOn, node, volume.FinalizerContentBound, driver)) == nil, nil
		}
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, served); err != nil {
			t.Fatal(err)
		}
	}
	content("here", ownDriver, "n1")
	content("there", ownDriver, "n2")
	content("shared", sharedDriver, "")
	content("lent", lentDriver, "n1")
	intent := `{"metadata":{"annotations":{"` + volume.AnnSnapshotCreating + `":"yes"}}}`
	for _, row := range []struct{ argues, verb, path, body, want string }{
		{"an intent", http.MethodPatch, "/here", intent, ""},
		{"its end", http.MethodPatch, "/here", `{"metadata":{"annotations":{"` + volume.AnnSnapshotCreating + `":null}}}`, ""},
		{"a status", http.MethodPatch, "/here/status", `{"status":{"readyToUse":true,"snapshotHandle":"h"}}`, ""},
		{"a delegated driver's", http.MethodPatch, "/shared", intent, ""},
		{"another node's", http.MethodPatch, "/there", intent, "is not of a volume of the node"},
		{
			"another node's status", http.MethodPatch, "/there/status", `{"status":{"readyToUse":true}}`,
			"is not of a volume of the node",
		},
		{"a driver that is another's", http.MethodPatch, "/lent", intent, "is neither node-local nor delegated"},
		{"the node of a content", http.MethodPatch, "/here", `{"metadata":{"annotations":{"` + volume.AnnProvisionedOn +
			`":"n2"}}}`, "changes more than they may"},
		{"the policy", http.MethodPatch, "/here", `{"spec":{"deletionPolicy":"Retain"}}`, "changes more than they may"},
		{"that it may be deleted", http.MethodPatch, "/here", `{"metadata":{"annotations":{"` + volume.AnnSnapshotDeleting +
			`":"yes"}}}`, "changes more than they may"},
		{"a deletion", http.MethodDelete, "/here", "{}", "cannot delete"},
		{"its end at the driver", http.MethodPatch, "/here", `{"metadata":{"finalizers":[]}}`, ""},
	} {
		c.expect(row.argues, c.contents(c.n1, row.verb, row.path, row.body), row.want)
	}
}
