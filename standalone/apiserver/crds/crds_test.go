package crds

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestDefinitionsAreThoseOfTheModule: a new version of the module needs `make
// generate`.
func TestDefinitionsAreThoseOfTheModule(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/kubernetes-csi/external-snapshotter/client/v8").Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)),
		"config/crd/*snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(theirs) == 0 {
		t.Fatalf("%v, %v", theirs, err)
	}
	all, err := All()
	if err != nil || len(all) != len(theirs)+1 {
		t.Fatalf("%d definitions, %d in the module, %v", len(all), len(theirs), err)
	}
	for _, crd := range all {
		if !slices.Contains([]string{snapshotv1.GroupName, groupv1.GroupName, volume.GroupMetadata}, crd.Spec.Group) {
			t.Errorf("%s is of group %s", crd.Name, crd.Spec.Group)
		}
	}
	for _, path := range theirs {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Base(path))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not that of the module: %v", filepath.Base(path), err)
		}
	}
}

// TestDefinitionsNeedNoWebhook: no server converts versions for this one.
func TestDefinitionsNeedNoWebhook(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range all {
		if crd.Spec.Conversion != nil {
			t.Errorf("%s is converted by %s, which is not served", crd.Name, crd.Spec.Conversion.Strategy)
		}
	}
}

// TestDefinitionsHaveTopology: only the kinds of single snapshots have the fields of KEP-5943.
func TestDefinitionsHaveTopology(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range all {
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		_, places := schema.Properties["spec"].Properties["nodeAffinity"]
		_, allows := schema.Properties["allowedTopologies"]
		kind := crd.Spec.Names.Kind
		if places != (kind == "VolumeSnapshotContent") || allows != (kind == "VolumeSnapshotClass") {
			t.Errorf("%s: nodeAffinity %v, allowedTopologies %v", kind, places, allows)
		}
	}
}
