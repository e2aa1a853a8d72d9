package kube

import (
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// object is any object of the API.
type object interface {
	runtime.Object
	metav1.Object
}

// filler sets all fields of objects to values that are all different.
type filler struct{ n int }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		*x = metav1.Unix(int64(f.n), 0)
		return
	case *resource.Quantity:
		*x = *resource.NewQuantity(int64(f.n)<<20, resource.BinarySI)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text " + strconv.Itoa(f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Slice, reflect.Map:
		f.fillTwo(v)
	case reflect.Uint8:
		v.SetUint(uint64(f.n % 256))
	}
}

func (f *filler) fillTwo(v reflect.Value) {
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for range 2 {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key)
		f.fill(value)
		v.SetMapIndex(key, value)
	}
}

// TestTrimLeavesWhatIsUpdatedWhole: an update of a cached object takes nothing
// from the server's: all fields are kept except managedFields, which the server then
// leaves unchanged. The second of two objects that are equal says the same as well,
// however many came between.
func TestTrimLeavesWhatIsUpdatedWhole(t *testing.T) {
	trimmer := &Trimmer{}
	for _, o := range []object{
		&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &storagev1.VolumeAttachment{},
		&storagev1.CSIStorageCapacity{}, &snapshotv1.VolumeSnapshot{}, &cluster.VolumeSnapshotContent{},
	} {
		for n := range maxInterned + 2 {
			f := filler{n: n % (maxInterned + 1) * 1000}
			f.fill(reflect.ValueOf(o).Elem())
			want := o.DeepCopyObject().(object)
			want.SetManagedFields(nil)
			got, err := trimmer.trim(o.DeepCopyObject())
			if err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(want, got) {
				t.Fatalf("%T %d: trimming changes:\n%s", o, n, cmp.Diff(want, got))
			}
		}
	}
}

// TestTrimShares: equal parts of two objects are one, and a copy's change is
// the copy's alone.
func TestTrimShares(t *testing.T) {
	make := func(name string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnProvisionedBy: "d"}},
		}
		v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		return v
	}
	trimmer := &Trimmer{}
	a, b := trimmed(t, trimmer, make("a")), trimmed(t, trimmer, make("b"))
	if reflect.ValueOf(a.Annotations).Pointer() != reflect.ValueOf(b.Annotations).Pointer() {
		t.Error("equal annotations are there twice")
	}
	if reflect.ValueOf(a.Spec.Capacity).Pointer() != reflect.ValueOf(b.Spec.Capacity).Pointer() {
		t.Error("equal sizes are there twice")
	}
	c := a.DeepCopy()
	c.Annotations["x"], c.Spec.Capacity[corev1.ResourceStorage] = "y", resource.MustParse("2Gi")
	if d := cmp.Diff(b.Annotations, make("b").Annotations); d != "" {
		t.Error("the change of a copy is another one's:", d)
	}
	if got := b.Spec.Capacity[corev1.ResourceStorage]; got.String() != "1Gi" {
		t.Error("the size of a copy is another one's:", got.String())
	}
}

func trimmed[T object](t *testing.T, trimmer *Trimmer, o T) T {
	t.Helper()
	got, err := trimmer.trim(o)
	if err != nil {
		t.Fatal(err)
	}
	return got.(T)
}

// TestTrimTellsApart: what is not equal does not become one, though it reads
// the same one after the other.
func TestTrimTellsApart(t *testing.T) {
	trimmer := &Trimmer{}
	for _, pairs := range [][2]map[string]string{
		{{"a": "b", "c": "d"}, {"a": "b\x00c\x00d"}},
		{{"a": "bc"}, {"ab": "c"}},
		{{"a": ""}, {"": "a"}},
	} {
		for _, want := range pairs {
			c := trimmed(t, trimmer, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: want}})
			if d := cmp.Diff(want, c.Annotations); d != "" {
				t.Error(d)
			}
		}
	}
	for _, want := range [][]string{{"ab", "c"}, {"a", "bc"}, {"abc"}} {
		c := trimmed(t, trimmer, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Finalizers: want}})
		if d := cmp.Diff(want, c.Finalizers); d != "" {
			t.Error(d)
		}
	}
}

// TestTrimTogether: objects are trimmed and read concurrently, some twice.
func TestTrimTogether(t *testing.T) {
	trimmer := &Trimmer{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 500 {
				c := &corev1.PersistentVolumeClaim{
					ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": strconv.Itoa(i % 50), "b": "c"}},
				}
				for range 2 {
					if _, err := trimmer.trim(c); err != nil || c.Annotations["b"] != "c" {
						t.Errorf("annotations are %v; %v", c.Annotations, err)
					}
				}
			}
		})
	}
	all.Wait()
}

// TestTrimPod: a Pod keeps what mounting needs and, until it has a node, what
// choosing one does.
func TestTrimPod(t *testing.T) {
	claim := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}
	own := corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	inline := corev1.Volume{Name: "i", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}}
	token := corev1.Volume{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}
	told := corev1.PodCondition{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}
	refused := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "n", Name: "p", UID: "u", ResourceVersion: "1", DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
				Labels: map[string]string{"a": "b"},
				Annotations: map[string]string{
					volume.AnnMountAt: "/m", volume.AnnMountFor: "/n", volume.AnnMountOptions: "suid", volume.AnnUnmountEnds: "true",
					"a": "b",
				},
				ManagedFields: []metav1.ManagedFieldsEntry{{}}, Finalizers: []string{"f"},
			},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "big"}}, Volumes: []corev1.Volume{claim, token, own, inline},
				ServiceAccountName: "a",
				SecurityContext:    &corev1.PodSecurityContext{FSGroup: ptr.To[int64](7), RunAsUser: ptr.To[int64](8)},
				NodeSelector:       map[string]string{"a": "b"},
				Affinity:           &corev1.Affinity{}, Tolerations: []corev1.Toleration{{Key: "k"}}, SchedulerName: "s",
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "g"}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4", Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady}, refused, told,
			}},
		}
	}
	want := pod()
	want.Labels, want.Annotations, want.ManagedFields, want.Finalizers = nil,
		map[string]string{
			volume.AnnMountAt: "/m", volume.AnnMountFor: "/n", volume.AnnMountOptions: "suid", volume.AnnUnmountEnds: "true",
		}, nil, nil
	want.Spec.Containers, want.Spec.Volumes = nil, []corev1.Volume{claim, own, inline}
	want.Spec.SecurityContext.RunAsUser = nil
	want.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{refused, told}}
	got := trimmed(t, &Trimmer{}, pod())
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("without a node (-want +got):\n%s", d)
	}
	if names := cluster.ClaimNames(got); len(names) != 2 || names[0] != "c" || names[1] != "p-e" {
		t.Errorf("claims %v, want [c p-e]", names)
	}
	placed := pod()
	placed.Spec.NodeName = "n1"
	want.Spec = corev1.PodSpec{
		NodeName: "n1", Volumes: want.Spec.Volumes, ServiceAccountName: "a", SecurityContext: want.Spec.SecurityContext,
	}
	if d := cmp.Diff(want, trimmed(t, &Trimmer{}, placed)); d != "" {
		t.Errorf("with a node (-want +got):\n%s", d)
	}
}

// TestTrimLabels: of the SELinux options of a Pod remains what labels its mounts: the Pod's alone if no container has
// its own.
func TestTrimLabels(t *testing.T) {
	label := func(level string) *corev1.SELinuxOptions { return &corev1.SELinuxOptions{Level: level} }
	mounts := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	pod := func() *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{
			NodeName: "n1", SecurityContext: &corev1.PodSecurityContext{
				SELinuxOptions: label("s0"), SELinuxChangePolicy: ptr.To(corev1.SELinuxChangePolicyRecursive),
			},
			InitContainers: []corev1.Container{{Name: "i", Image: "big", VolumeMounts: mounts}},
			Containers: []corev1.Container{{
				Name: "c", Image: "big", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
			}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "e", Image: "big", VolumeMounts: mounts,
			}}},
		}}
	}
	want := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", SecurityContext: pod().Spec.SecurityContext}}
	if d := cmp.Diff(want, trimmed(t, &Trimmer{}, pod())); d != "" {
		t.Errorf("the Pod's alone (-want +got):\n%s", d)
	}
	own := pod()
	own.Spec.EphemeralContainers[0].SecurityContext = &corev1.SecurityContext{
		SELinuxOptions: label("s0:c1"), Privileged: ptr.To(true),
	}
	// How files are relabelled counts for these options, too.
	own.Spec.SecurityContext.SELinuxOptions, want.Spec.SecurityContext.SELinuxOptions = nil, nil
	bare := []corev1.VolumeMount{{Name: "v"}}
	want.Spec.Containers = []corev1.Container{
		{VolumeMounts: bare},
		{},
		{VolumeMounts: bare, SecurityContext: &corev1.SecurityContext{SELinuxOptions: label("s0:c1")}},
	}
	if d := cmp.Diff(want, trimmed(t, &Trimmer{}, own)); d != "" {
		t.Errorf("one of a container (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want, trimmed(t, &Trimmer{}, want.DeepCopy())); d != "" {
		t.Errorf("trimmed again (-want +got):\n%s", d)
	}
}
