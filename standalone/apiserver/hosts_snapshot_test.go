package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

// contentKind is a kind of contents: of snapshots, or of groups of them.
type contentKind struct {
	group, resource, kind, source, ref    string
	finalizer, creating, deleting, handle string
}

func contentKinds() []contentKind {
	return []contentKind{
		{
			volume.GroupSnapshot, volume.ResourceSnapshotContents, "VolumeSnapshotContent", `"volumeHandle":"v"`,
			"volumeSnapshotRef", volume.FinalizerContentBound, volume.AnnSnapshotCreating, volume.AnnSnapshotDeleting,
			`"snapshotHandle":"h"`,
		},
		{
			volume.GroupGroupSnapshot, volume.ResourceGroupContents, "VolumeGroupSnapshotContent", `"volumeHandles":["v"]`,
			"volumeGroupSnapshotRef", volume.FinalizerGroupContentBound, volume.AnnGroupCreating, volume.AnnGroupDeleting,
			`"volumeGroupSnapshotHandle":"h"`,
		},
	}
}

// contents sends a request about contents. They are served a moment after the server is ready.
func (c *hostCluster) contents(client kubernetes.Interface, k contentKind, verb, path, body string) error {
	r := client.Discovery().RESTClient().Verb(verb).AbsPath("/apis/" + k.group + "/v1/" + k.resource + path)
	if r = r.Body([]byte(body)).SetHeader("Content-Type", "application/json"); verb == http.MethodPatch {
		r = r.SetHeader("Content-Type", string(types.MergePatchType))
	}
	return r.Do(c.t.Context()).Error()
}

// TestAHostAndItsSnapshots: a host reports the state of snapshots of its own volumes, and of their groups, and nothing
// else.
func TestAHostAndItsSnapshots(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	for _, k := range contentKinds() {
		c.restrictsContents(k)
	}
}

// makeContent creates a content of a kind.
func (c *hostCluster) makeContent(k contentKind, name, driver, node string) {
	c.t.Helper()
	served := func(context.Context) (bool, error) {
		return c.contents(c.admin, k, http.MethodPost, "", fmt.Sprintf(`{"apiVersion":"%s/v1","kind":%q,
			"metadata":{"name":%q,"annotations":{%q:%q},"finalizers":[%q]},"spec":{"driver":%q,"deletionPolicy":"Delete",
			"source":{%s},%q:{"namespace":"ns","name":"s"}}}`,
			k.group, k.kind, name, volume.AnnProvisionedOn, node, k.finalizer, driver, k.source, k.ref)) == nil, nil
	}
	if err := wait.PollUntilContextTimeout(c.t.Context(), 50*time.Millisecond, time.Minute, true, served); err != nil {
		c.t.Fatal(k.kind, err)
	}
}

func (c *hostCluster) restrictsContents(k contentKind) {
	c.makeContent(k, "here", ownDriver, "n1")
	c.makeContent(k, "there", ownDriver, "n2")
	c.makeContent(k, "shared", sharedDriver, "")
	c.makeContent(k, "lent", lentDriver, "n1")
	annotation := func(key, value string) string { return `{"metadata":{"annotations":{"` + key + `":` + value + `}}}` }
	intent := annotation(k.creating, `"yes"`)
	for _, row := range []struct{ argues, verb, path, body, want string }{
		{"an intent", http.MethodPatch, "/here", intent, ""},
		{"its end", http.MethodPatch, "/here", annotation(k.creating, "null"), ""},
		{"its parameters", http.MethodPatch, "/here", annotation(volume.AnnSnapshotParameters, `"{}"`), ""},
		{"a status", http.MethodPatch, "/here/status", `{"status":{"readyToUse":true,` + k.handle + `}}`, ""},
		{"a delegated driver's", http.MethodPatch, "/shared", intent, ""},
		{"another node's", http.MethodPatch, "/there", intent, "is not of a volume of the node"},
		{
			"another node's status", http.MethodPatch, "/there/status", `{"status":{"readyToUse":true}}`,
			"is not of a volume of the node",
		},
		{"a driver that is another's", http.MethodPatch, "/lent", intent, "is neither node-local nor delegated"},
		{
			"the node of a content", http.MethodPatch, "/here", annotation(volume.AnnProvisionedOn, `"n2"`),
			"changes more than they may",
		},
		{"that it is lost", http.MethodPatch, "/here", annotation(volume.AnnLostWith, `"n1"`), "changes more than they may"},
		{"the policy", http.MethodPatch, "/here", `{"spec":{"deletionPolicy":"Retain"}}`, "changes more than they may"},
		{
			"that it may be deleted", http.MethodPatch, "/here", annotation(k.deleting, `"yes"`),
			"changes more than they may",
		},
		{"a deletion", http.MethodDelete, "/here", "{}", "cannot delete"},
		{"its end at the driver", http.MethodPatch, "/here", `{"metadata":{"finalizers":[]}}`, ""},
	} {
		c.expect(k.kind+": "+row.argues, c.contents(c.n1, k, row.verb, row.path, row.body), row.want)
	}
}

// TestAHostPlacesSnapshots: a host can set the topology of its own snapshot once.
func TestAHostPlacesSnapshots(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	k := contentKinds()[0]
	c.makeContent(k, "here", ownDriver, "n1")
	c.makeContent(k, "there", ownDriver, "n2")
	place := func(terms string) string { return `{"spec":{"nodeAffinity":` + terms + `}}` }
	const inA = `[{"matchLabelExpressions":[{"key":"zone","values":["a"]}]}]`
	for _, row := range []struct{ argues, path, body, want string }{
		{"another node's", "/there", place(inA), "is not of a volume of the node"},
		{"its own", "/here", place(inA), ""},
		{"the same again", "/here", place(inA), ""},
		{"no place", "/here", place("null"), "changes more than they may"},
	} {
		c.expect(row.argues, c.contents(c.n1, k, http.MethodPatch, row.path, row.body), row.want)
	}
	const inB = `[{"matchLabelExpressions":[{"key":"zone","values":["b"]}]}]`
	err := c.contents(c.n1, k, http.MethodPatch, "/here", place(inB))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "nodeAffinity is immutable") {
		t.Errorf("another place: %v", err)
	}
}

// TestAHostKeepsSnapshots: a host keeps a snapshot of its own while it creates a volume from it, and changes no other
// field of it.
func TestAHostKeepsSnapshots(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	c.makeSnapshot("here", "here", "n1")
	c.makeSnapshot("there", "there", "n2")
	c.makeSnapshot("stolen", "of-another", "n1")
	snapshots := snapshotKind()
	finalizers := func(all ...string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) { o.SetFinalizers(all) }
	}
	keep := finalizers(volume.FinalizerRestoring)
	for _, row := range []struct {
		argues, name string
		change       func(*unstructured.Unstructured)
		want         string
	}{
		{"its own", "here", keep, ""},
		{"it lets it go", "here", finalizers(), ""},
		{"another node's", "there", keep, "is not of a volume of the node"},
		{"a content of another snapshot", "stolen", keep, "is not that of snapshot default/stolen"},
		{"another finalizer", "here", finalizers("other.example.com/x"), "changes more than they may"},
		{"an annotation", "here", func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{"k": "v"})
		}, "changes more than they may"},
	} {
		o := c.customObject(snapshots, row.name)
		row.change(o)
		body, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		c.expect(row.argues, c.contents(c.n1, snapshots, http.MethodPut, "/"+row.name, string(body)), row.want)
	}
}

func snapshotKind() contentKind {
	return contentKind{group: volume.GroupSnapshot, resource: "namespaces/default/" + volume.ResourceSnapshots}
}

// makeSnapshot creates a snapshot that names the content with its own name, which belongs to a node and refers to a
// snapshot.
func (c *hostCluster) makeSnapshot(name, refers, node string) {
	c.t.Helper()
	contents, snapshots := contentKinds()[0], snapshotKind()
	c.makeContent(contents, name, ownDriver, node)
	for _, row := range []struct{ verb, path, body string }{
		{http.MethodPost, "", fmt.Sprintf(`{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot",
			"metadata":{"name":%q},"spec":{"source":{"persistentVolumeClaimName":"c"}}}`, name)},
		{
			http.MethodPatch, "/" + name + "/status",
			fmt.Sprintf(`{"status":{"boundVolumeSnapshotContentName":%q}}`, name),
		},
	} {
		c.expect(name, c.contents(c.admin, snapshots, row.verb, row.path, row.body), "")
	}
	uid := "of-another"
	if refers == name {
		uid = string(c.customObject(snapshots, name).GetUID())
	}
	c.expect(name, c.contents(c.admin, contents, http.MethodPatch, "/"+name,
		fmt.Sprintf(`{"spec":{"volumeSnapshotRef":{"uid":%q}}}`, uid)), "")
}

// customObject reads an object of a kind.
func (c *hostCluster) customObject(k contentKind, name string) *unstructured.Unstructured {
	c.t.Helper()
	o := &unstructured.Unstructured{}
	body, err := c.admin.Discovery().RESTClient().Get().
		AbsPath("/apis/" + k.group + "/v1/" + k.resource + "/" + name).Do(c.t.Context()).Raw()
	if err == nil {
		err = o.UnmarshalJSON(body)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}
