package ephemeral

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/kube/kubetest"
)

const (
	makeData   = "create persistentvolumeclaims ns/p-data"
	dropData   = "delete persistentvolumeclaims ns/p-data"
	toldOfData = "Normal ns/p SuccessfulCreate: claim p-data is made for volume data of pod p"
)

// bubble is a test of its own whose clock goes on when all rests.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func spec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("fast"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}
}

func template() *corev1.EphemeralVolumeSource {
	return &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
		Spec:       spec(),
	}}
}

// pod has a volume of its own between two that are not.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: template()}},
		{Name: "claimed", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
		}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// anew is the Pod made again under its name.
func anew(p *corev1.Pod) { p.UID = "anew" }

// bare leaves a Pod its own volume only.
func bare(p *corev1.Pod) { p.Spec.Volumes = p.Spec.Volumes[1:2] }

// two gives a Pod one more volume of its own.
func two(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
		Name: "more", VolumeSource: corev1.VolumeSource{Ephemeral: template()},
	})
}

// claim is the one that is made for a volume of the Pod.
func claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)},
			},
		},
		Spec: spec(),
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func users(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil }

func begin(a *kubetest.API) (stop func()) {
	_, stop = a.Run(New)
	return stop
}

// TestWholeClaim: a claim has all that its template says and goes with its Pod; a
// Pod that goes already gets none.
func TestWholeClaim(t *testing.T) {
	going := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Unix(1e9, 0)}, []string{"a/b"}
	}
	unknown := claim("c", users)
	for _, c := range []struct {
		name                string
		before, last, after []runtime.Object
		writes, told        []string
	}{
		{"a Pod that is there", []runtime.Object{
			pod(), unknown,
		}, nil, []runtime.Object{claim("p-data"), unknown}, []string{makeData}, []string{toldOfData}},
		{"a Pod with nothing else", []runtime.Object{
			pod(bare),
		}, nil, []runtime.Object{claim("p-data")}, []string{makeData}, []string{toldOfData}},
		{"a Pod that comes", nil, []runtime.Object{pod()}, []runtime.Object{claim("p-data")}, []string{makeData}, []string{
			toldOfData,
		}},
		{"a Pod that goes", []runtime.Object{pod(going)}, nil, nil, nil, nil},
		{"a Pod with its claim", []runtime.Object{pod(), claim("p-data")}, nil, []runtime.Object{claim("p-data")}, nil, nil},
		{
			"a user's claim",
			[]runtime.Object{pod(), claim("p-data", users)},
			nil,
			[]runtime.Object{claim("p-data", users)},
			nil,
			[]string{"Warning ns/p ClaimMisbound: there is a claim p-data already, which was not made for volume data of this " +
				"Pod (user)"},
		},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a := kubetest.NewAPI(t, c.before...)
			defer begin(a)()
			a.Put(c.last...)
			<-time.After(time.Minute)
			a.Has(c.after...)
			a.Wrote(c.writes...)
			a.Told(c.told...)
		})
	}
}

// TestClaimComesBack: what a user has deleted, or what was in the way, is made when
// it is gone.
func TestClaimComesBack(t *testing.T) {
	for name, first := range map[string]*corev1.PersistentVolumeClaim{
		"its own": claim("p-data"), "a user's": claim("p-data", users),
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, pod(), first)
			defer begin(a)()
			a.Wrote()
			a.Drop(first)
			synctest.Wait()
			a.Has(claim("p-data"))
			a.Did(makeData)
		})
	}
}

// TestInTheWay: a claim that comes before the Pod's own can be made is no failure,
// and the Pod is told when it is seen.
func TestInTheWay(t *testing.T) {
	bubble(t, "already exists", func(t *testing.T) {
		a := kubetest.NewAPI(t, pod())
		a.Fate = func(int, string) (bool, error) {
			a.Put(claim("p-data", users))
			return false, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "persistentvolumeclaims"}, "p-data")
		}
		defer begin(a)()
		<-time.After(time.Hour)
		a.Wrote(makeData)
		a.Told("Warning ns/p ClaimMisbound: there is a claim p-data already, which was not made for volume data of " +
			"this Pod (user)")
		a.Has(claim("p-data", users))
	})
}

// TestOneFails: a claim that cannot be made is told of and tried again, and keeps no
// other one of the Pod from being made.
func TestOneFails(t *testing.T) {
	bubble(t, "quota", func(t *testing.T) {
		a := kubetest.NewAPI(t, pod(two))
		later := time.Now().Add(time.Second)
		a.Fate = func(_ int, write string) (bool, error) {
			if time.Now().Before(later) && write == makeData {
				return false, errors.New("the quota is used up")
			}
			return true, nil
		}
		defer begin(a)()
		a.Has(claim("p-more"))
		a.Told("Normal ns/p SuccessfulCreate: claim p-more is made for volume more of pod p",
			"Warning ns/p FailedCreate: claim p-data cannot be made: the quota is used up (user)")
		<-time.After(time.Minute)
		a.Has(claim("p-data"), claim("p-more"))
		a.Did("create persistentvolumeclaims ns/p-more", makeData)
	})
}

// TestLeft: a claim goes when its Pod is gone, by its version, and a claim that is
// nobody's or another's stays.
func TestLeft(t *testing.T) {
	shared := func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = append(c.OwnerReferences,
			metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "m", UID: "m"})
	}
	for _, c := range []struct {
		name   string
		claim  *corev1.PersistentVolumeClaim
		there  []runtime.Object
		writes []string
	}{
		{"its Pod is gone", claim("p-data"), nil, []string{dropData}},
		{"its Pod is another one", claim("p-data"), []runtime.Object{pod(anew)}, []string{dropData, makeData}},
		{"its Pod is there", claim("p-data"), []runtime.Object{pod()}, nil},
		{"a user's", claim("p-data", users), nil, nil},
		{"another's, too", claim("p-data", shared), nil, nil},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a := kubetest.NewAPI(t, append(c.there, c.claim)...)
			defer begin(a)()
			a.Did(c.writes...)
			if c.writes == nil {
				a.Has(c.claim)
			}
		})
	}
}

// TestPodGoes while it is watched, or is made anew while nobody looks: its claim
// goes with it, and no other one.
func TestPodGoes(t *testing.T) {
	bubble(t, "gone", func(t *testing.T) {
		kept := claim("c", users)
		a := kubetest.NewAPI(t, pod(), claim("p-data"), kept)
		defer begin(a)()
		a.Drop(pod())
		synctest.Wait()
		a.Wrote(dropData)
		a.Has(kept)
	})
	bubble(t, "anew", func(t *testing.T) {
		a := kubetest.NewAPI(t, pod(), claim("p-data"))
		defer begin(a)()
		a.Drop(pod())
		a.Put(pod(anew))
		<-time.After(time.Minute)
		a.Did(dropData, makeData)
		a.Has(claim("p-data", func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences[0].UID = "anew" }))
	})
}

// TestApiIsAsked before a claim goes: a Pod of which only the API server knows keeps
// its claim, and so does no answer.
func TestApiIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		pod *corev1.Pod
		err error
	}{"it knows the Pod": {pod(), nil}, "it does not answer": {nil, errors.New("not now")}} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, claim("p-data"))
			asked := 0
			a.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				asked++
				if is := action.(clienttesting.GetAction); is.GetNamespace() != "ns" || is.GetName() != "p" {
					t.Errorf("asked for %s/%s", is.GetNamespace(), is.GetName())
				}
				return true, c.pod, c.err
			})
			defer begin(a)()
			<-time.After(time.Second)
			a.Wrote()
			a.Has(claim("p-data"))
			if again := c.err != nil; asked == 0 || (asked > 1) != again {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// TestDeletion is of the claim that was looked at: one that has changed meanwhile is
// looked at again, and one that is gone is gone.
func TestDeletion(t *testing.T) {
	theirs := claim("p-data", users)
	remade := claim("p-data", users, func(c *corev1.PersistentVolumeClaim) { c.UID = "anew" })
	changed := claim("p-data", func(c *corev1.PersistentVolumeClaim) { c.Labels["a"] = "c" })
	for _, c := range []struct {
		name      string
		meanwhile func(*kubetest.API)
		stays     []runtime.Object
		writes    []string
	}{
		{"it became a user's", func(a *kubetest.API) { a.Put(theirs) }, []runtime.Object{theirs}, []string{dropData}},
		{"it was made anew", func(a *kubetest.API) { a.Put(remade) }, []runtime.Object{remade}, []string{dropData}},
		{"it changed", func(a *kubetest.API) { a.Put(changed) }, nil, []string{dropData, dropData}},
		{"it is gone", func(a *kubetest.API) { a.Drop(theirs) }, nil, []string{dropData}},
		{"it is well", func(*kubetest.API) {}, nil, []string{dropData}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a := kubetest.NewAPI(t, claim("p-data"))
			a.Fate = func(n int, _ string) (bool, error) {
				if n == 1 {
					c.meanwhile(a)
				}
				return true, nil
			}
			defer begin(a)()
			<-time.After(time.Minute)
			a.Wrote(c.writes...)
			a.Has(c.stays...)
		})
	}
}
