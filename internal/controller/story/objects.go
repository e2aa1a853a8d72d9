package story

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/rogpeppe/go-internal/txtar"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
		{"grant", "ReferenceGrant", &cluster.ReferenceGrant{}, nil},
		{"capacity", "CSIStorageCapacity", &storagev1.CSIStorageCapacity{}, nil},
		{"secret", "Secret", &corev1.Secret{}, nil},
		{"configmap", "ConfigMap", &corev1.ConfigMap{}, nil},
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

// keep makes a client create or replace objects; before the first process begins, they appear to have always existed.
func (c *Scene) keep(all ...runtime.Object) {
	for _, o := range all {
		if c.begun {
			c.API.Edit(o)
		} else {
			c.API.Set(o)
		}
	}
}

// file is what a file of objects says.
type file struct {
	objects []runtime.Object
	// words are the merge patches of its named changes.
	words map[string]string
}

// library are the files of objects that scripts use: testdata/objects, and the parts of the scripts' own file.
type library struct {
	own *txtar.Archive
	// mu guards read, which a controller that writes uses, too.
	mu   sync.Mutex
	read map[string]*file
}

// file reads a file of objects once.
func (l *library) file(name string) (*file, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.read[name]; f != nil {
		return f, nil
	}
	var text []byte
	if i := slices.IndexFunc(l.own.Files, func(f txtar.File) bool { return f.Name == name+".yaml" }); i >= 0 {
		text = l.own.Files[i].Data
	} else {
		shared, err := os.ReadFile(filepath.Join("testdata", "objects", name+".yaml"))
		if err != nil {
			return nil, err
		}
		text = shared
	}
	f := &file{words: map[string]string{}}
	for _, part := range strings.Split(string(text), "\n---\n") {
		if err := f.add(part); err != nil {
			return nil, fmt.Errorf("%s.yaml: %w", name, err)
		}
	}
	l.read[name] = f
	return f, nil
}

// add adds a part of a file: an object, or named changes of those above it.
func (f *file) add(part string) error {
	if regexp.MustCompile(`(?m)^kind: `).MatchString(part) {
		o, err := decoded([]byte(part))
		f.objects = append(f.objects, o)
		return err
	}
	words := map[string]any{}
	if err := yaml.Unmarshal([]byte(part), &words); err != nil {
		return err
	}
	for word, patch := range words {
		text, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		f.words[word] = string(text)
	}
	return nil
}

// patch returns the merge patch of a word, "NAME" or "NAME=VALUE".
func (f *file) patch(word string) (string, error) {
	name, value, ok := strings.Cut(word, "=")
	text := f.words[name]
	if text == "" || strings.Contains(text, `"$"`) != ok {
		return "", fmt.Errorf("%q is not a change of this object", word)
	}
	if ok {
		scalar, err := yaml.YAMLToJSON([]byte(value))
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(value, "{") {
			scalar, err = json.Marshal(value)
		}
		return strings.ReplaceAll(text, `"$"`, string(scalar)), err
	}
	return text, nil
}

// named returns the objects of "FILE [WORD...] [PATCH]; ...".
func (l *library) named(text string) ([]runtime.Object, error) {
	var out []runtime.Object
	for one := range strings.SplitSeq(text, "; ") {
		one, patch, more := strings.Cut(one, "{")
		words := strings.Fields(one)
		if more && strings.HasSuffix(one, " ") {
			patch = "{" + patch
		} else if more { // the value of a word
			words, patch = strings.Fields(one+"{"+patch), ""
		}
		f, err := l.file(words[0])
		if err != nil {
			return nil, err
		}
		all, err := f.changed(words[1:], patch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one, err)
		}
		out = append(out, all...)
	}
	return out, nil
}

// changed returns the objects of a file with words and a merge patch.
func (f *file) changed(words []string, patch string) ([]runtime.Object, error) {
	var patches []string
	for _, word := range words {
		text, err := f.patch(word)
		if err != nil {
			return nil, err
		}
		patches = append(patches, text)
	}
	if patch != "" {
		patches = append(patches, patch)
	}
	var out []runtime.Object
	for _, o := range f.objects {
		o = o.DeepCopyObject()
		for _, patch := range patches {
			var err error
			if o, err = merged(o, patch); err != nil {
				return nil, err
			}
		}
		if m := kubetest.MetaOf(o); m.GetUID() == "" {
			m.SetUID(types.UID(m.GetName()))
		}
		out = append(out, o)
	}
	return out, nil
}

// Object returns the first object of "FILE [WORD...] [PATCH]", with FILE in testdata/objects, for tests that are not
// scripts.
func Object[T runtime.Object](t testing.TB, text string) T {
	t.Helper()
	all, err := newLibrary(&txtar.Archive{}).named(text)
	if err != nil {
		t.Fatal(err)
	}
	return all[0].(T)
}

func newLibrary(own *txtar.Archive) *library { return &library{own: own, read: map[string]*file{}} }

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
	change, err := yaml.YAMLToJSON([]byte(timed(patch)))
	if err != nil {
		return nil, err
	}
	after, err := jsonpatch.MergePatch(before, change)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", patch, err)
	}
	return decoded(after)
}

// timed is a patch whose times are no longer "now".
func timed(patch string) string {
	now := time.Now().UTC().Format(time.RFC3339)
	return regexp.MustCompile(`(Time"?: ?)"?now"?`).ReplaceAllString(patch, `$1"`+now+`"`)
}
