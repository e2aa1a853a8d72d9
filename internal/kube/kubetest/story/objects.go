package story

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/rogpeppe/go-internal/txtar"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// kind is a kind of objects.
type kind struct {
	short, name string
	object      runtime.Object
	// columns are those of its table.
	columns []string
}

func kinds() []kind {
	return []kind{
		{"pvc", "PersistentVolumeClaim", &corev1.PersistentVolumeClaim{}, []string{
			"STATUS=.status.phase", "VOLUME=.spec.volumeName", "CLASS=.spec.storageClassName",
		}},
		{"pv", "PersistentVolume", &corev1.PersistentVolume{}, []string{
			"STATUS=.status.phase", "CLAIM=.spec.claimRef.name",
		}},
		{"va", "VolumeAttachment", &storagev1.VolumeAttachment{}, []string{
			"VOLUME=.spec.source.persistentVolumeName", "NODE=.spec.nodeName", "ATTACHED=.status.attached",
		}},
		{"pod", "Pod", &corev1.Pod{}, []string{"NODE=.spec.nodeName", "STATUS=.status.phase"}},
		{"node", "Node", &corev1.Node{}, nil},
		{"lease", "Lease", &coordinationv1.Lease{}, nil},
		{"sc", "StorageClass", &storagev1.StorageClass{}, nil},
		{"vac", "VolumeAttributesClass", &storagev1.VolumeAttributesClass{}, nil},
		{"csinode", "CSINode", &storagev1.CSINode{}, nil},
		{"csidriver", "CSIDriver", &storagev1.CSIDriver{}, nil},
		{"vs", "VolumeSnapshot", &snapshotv1.VolumeSnapshot{}, []string{
			"READYTOUSE=.status.readyToUse", "CONTENT=.status.boundVolumeSnapshotContentName", "ERROR=.status.error.message",
		}},
		{"vsc", "VolumeSnapshotContent", &cluster.VolumeSnapshotContent{}, []string{
			"HANDLE=.status.snapshotHandle", "READYTOUSE=.status.readyToUse", "SNAPSHOT=.spec.volumeSnapshotRef.name",
		}},
		{"vsclass", "VolumeSnapshotClass", &cluster.VolumeSnapshotClass{}, nil},
		{"vgs", "VolumeGroupSnapshot", &groupv1.VolumeGroupSnapshot{}, []string{
			"READYTOUSE=.status.readyToUse", "CONTENT=.status.boundVolumeGroupSnapshotContentName",
			"ERROR=.status.error.message",
		}},
		{"vgsc", "VolumeGroupSnapshotContent", &groupv1.VolumeGroupSnapshotContent{}, nil},
		{"vgsclass", "VolumeGroupSnapshotClass", &groupv1.VolumeGroupSnapshotClass{}, nil},
		{"capacity", "CSIStorageCapacity", &storagev1.CSIStorageCapacity{}, nil},
	}
}

func kindNamed(short string) (kind, error) {
	all := kinds()
	if i := slices.IndexFunc(all, func(k kind) bool { return k.short == short }); i >= 0 {
		return all[i], nil
	}
	return kind{}, fmt.Errorf("there is no kind %q", short)
}

// short is the short name of a resource.
func short(resource string) string {
	for _, k := range kinds() {
		if kubetest.ResourceOf(k.object).Resource == resource {
			return k.short
		}
	}
	return resource
}

func shortKind(name string) string {
	for _, k := range kinds() {
		if k.name == name {
			return k.short
		}
	}
	return name
}

// find returns the object KIND/NAME or KIND/NAMESPACE/NAME.
func (c *Scene) find(object string) (runtime.Object, error) {
	word := strings.Split(object, "/")
	k, err := kindNamed(word[0])
	if err != nil || len(word) < 2 || len(word) > 3 {
		return nil, fmt.Errorf("%q is not KIND/NAME: %w", object, err)
	}
	return c.API.Tracker().Get(kubetest.ResourceOf(k.object), strings.Join(word[1:len(word)-1], ""), word[len(word)-1])
}

// keep has a client create or replace objects; before the controller is started, they appear to have always been so.
func (c *Scene) keep(all ...runtime.Object) {
	for _, o := range all {
		if c.life == nil {
			c.API.Set(o)
		} else {
			c.API.Edit(o)
		}
	}
}

// readAll returns the objects of FILE... [with PATCH].
func (s *script) readAll(args []string) ([]runtime.Object, error) {
	patch := ""
	if i := slices.Index(args, "with"); i >= 0 && i == len(args)-2 {
		args, patch = args[:i], args[i+1]
	}
	var out []runtime.Object
	for _, file := range args {
		all, err := s.read(file, patch)
		if err != nil {
			return nil, err
		}
		out = append(out, all...)
	}
	return out, nil
}

// Object returns the first object of a file in testdata/objects with a merge patch, for tests that are no stories.
func Object[T runtime.Object](t testing.TB, file, patch string) T {
	t.Helper()
	all, err := (&script{archive: &txtar.Archive{}}).read(file, patch)
	if err != nil {
		t.Fatal(err)
	}
	return all[0].(T)
}

// read returns the objects of a file of the story, or of testdata/objects.
func (s *script) read(file, patch string) ([]runtime.Object, error) {
	text := s.text(file)
	if text == "" {
		shared, err := os.ReadFile(filepath.Join("testdata", "objects", file))
		if err != nil {
			return nil, err
		}
		text = string(shared)
	}
	var all []runtime.Object
	for _, part := range strings.Split(text, "\n---\n") {
		o, err := decoded([]byte(part))
		if err == nil && patch != "" {
			o, err = merged(o, patch)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, err
		}
		if m.GetUID() == "" {
			m.SetUID(types.UID(m.GetName()))
		}
		all = append(all, o)
	}
	return all, nil
}

// decoded is an object of its YAML or JSON; a field that its kind does not have is an error.
func decoded(text []byte) (runtime.Object, error) {
	var m metav1.TypeMeta
	if err := yaml.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	o, err := kubetest.NewScheme().New(m.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(text, o); err != nil {
		return nil, err
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return o, nil
}

// merged is an object with a merge patch.
func merged(o runtime.Object, patch string) (runtime.Object, error) {
	kinds, _, err := kubetest.NewScheme().ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	o = o.DeepCopyObject()
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	before, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	change, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		return nil, err
	}
	after, err := jsonpatch.MergePatch(before, change)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", patch, err)
	}
	return decoded(after)
}
