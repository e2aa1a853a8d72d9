package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

const (
	notBound   = `persistentvolumeclaim "c" is not bound yet`
	beingBound = `persistentvolumeclaim "c" is being bound for node n1`
)

// TestWholePlacement: what a Pod's place is written on changes in that, and in
// nothing else.
func TestWholePlacement(t *testing.T) {
	free := pv()
	for _, s := range []scene{
		{"no claims", with(pod(bare)), nil, []runtime.Object{pod(bare, on("n1"))}, []string{bindPod}, []string{toldOfPlace}},
		{"a bound claim", with(pod(), claim(bound), pv(boundTo("c"))), nil, []runtime.Object{
			pod(on("n1")), claim(bound), pv(boundTo("c")),
		}, []string{bindPod}, []string{toldOfPlace}},
		{"a volume to be made", with(pod(), claim()), nil, []runtime.Object{
			pod(), claim(selected("n1")),
		}, []string{selectNode}, nil},
		{"a volume to be made, for a Pod that was refused before", with(pod(refused("old")), claim()), nil, []runtime.Object{
			pod(refused(beingBound)), claim(selected("n1")),
		}, []string{selectNode, tellPod}, []string{"Normal ns/p WaitForBind: " + beingBound + " (provisioner)"}},
		{"a volume to be made, asked for", with(pod(),
			claim(selected("n1"))), nil, []runtime.Object{pod(), claim(selected("n1"))}, nil, nil},
		{"a free volume", with(pod(), claim(of("byhand")), free), nil, []runtime.Object{
			pod(), claim(of("byhand")), pv(reserved("c", "1")),
		}, []string{reservePV, tellPod}, []string{"Normal ns/p WaitForBind: " + notBound + " (binder)"}},
		{"a node of its own choice", with(pod(on("n2")), node("n2"), claim()), nil, []runtime.Object{
			pod(on("n2")), claim(selected("n2")),
		}, []string{selectNode}, nil},
		{"on its node", with(pod(on("n1")), claim(bound), pv(boundTo("c"))), nil, []runtime.Object{pod(on("n1"))}, nil, nil},
		{"another scheduler's", with(pod(other), claim()), nil, []runtime.Object{pod(other), claim()}, nil, nil},
		{"with a gate", with(pod(gated), claim()), nil, []runtime.Object{pod(gated), claim()}, nil, nil},
		{"that goes", with(pod(going), claim()), nil, []runtime.Object{pod(going), claim()}, nil, nil},
		{"that failed", with(pod(is(corev1.PodFailed)), claim()), nil, []runtime.Object{
			pod(is(corev1.PodFailed)), claim(),
		}, nil, nil},
		{"that succeeded on its node", with(pod(on("n1"), is(corev1.PodSucceeded)),
			claim()), nil, []runtime.Object{claim()}, nil, nil},
	} {
		if s.name == "a free volume" {
			s.after[0] = pod(refused(notBound))
		}
		s.play(t)
	}
}

func other(p *corev1.Pod) { p.Spec.SchedulerName = "other" }

// TestFewest: a Pod goes where the fewest are, of those on the way, too, and to the
// node that reaches its volume.
func TestFewest(t *testing.T) {
	second := func(p *corev1.Pod) { called("q", "")(p); bare(p); on("n1")(p) }
	scene{
		"fewest", with(pod(bare), pod(second), node("n2")), nil,
		[]runtime.Object{pod(bare, on("n2"))},
		[]string{bindPod},
		[]string{"Normal ns/p Scheduled: Successfully assigned ns/p to n2"},
	}.play(t)
	there := pv(boundTo("c"), func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{
			Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}},
				},
			}}},
		}
	})
	scene{
		"within reach", with(pod(), claim(bound), there, node("n2"), csiNode("n2")), nil,
		[]runtime.Object{pod(on("n2")), there},
		[]string{bindPod},
		[]string{"Normal ns/p Scheduled: Successfully assigned ns/p to n2"},
	}.play(t)
}

// TestRefused: a Pod without a node says why, once, and keeps what others say of it.
func TestRefused(t *testing.T) {
	own := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}
	}
	users := claim(named("p-v"), bound)
	for _, c := range []struct {
		name, told, message, next string
		objects                   []runtime.Object
		change                    func(*corev1.Pod)
	}{
		{"no claim", "Warning ns/p ClaimMissing: ", `persistentvolumeclaim "c" not found`, "user", with(), nil},
		{
			"a claim in another namespace", "Warning ns/p ClaimMissing: ", `persistentvolumeclaim "c" not found`, "user",
			with(claim(bound, func(c *corev1.PersistentVolumeClaim) { c.Namespace = "other" })), nil,
		},
		{
			"a claim to be made", "Warning ns/p ClaimMissing: ", `persistentvolumeclaim "p-v" is being made for this pod`,
			"ephemeral", with(), own,
		},
		{
			"somebody else's claim of that name", "Warning ns/p ClaimMisbound: ",
			`persistentvolumeclaim "p-v" was not made for this pod`, "user", with(users, pv(boundTo("p-v"))), own,
		},
		{"not bound", "Normal ns/p WaitForBind: ", notBound, "binder", with(claim(of("soon"))), nil},
		{"no class", "Normal ns/p WaitForBind: ", notBound, "binder", with(claim(of("none"))), nil},
		{"a volume is kept for it", "Normal ns/p WaitForBind: ", notBound, "binder", with(claim(), pv(boundTo("c"))), nil},
		{"a volume that is gone", "Normal ns/p WaitForBind: ", notBound, "binder", with(claim(bound)), nil},
		{
			"in use", "Warning ns/p InUse: ", `persistentvolumeclaim "c" is for one pod and pod q uses it`, "pod q",
			with(claim(bound, forOnePod), pv(boundTo("c")), pod(called("q", "c"), on("n1"))), nil,
		},
		{
			"no volume", "Warning ns/p FailedScheduling: ",
			"0/1 nodes are available: n1: no volume of class byhand for claim c is available there", "user",
			with(claim(of("byhand")), pv(boundTo("x"))), nil,
		},
		{"no room told", "Warning ns/p FailedScheduling: ", "0/1 nodes are available: n1: node(s) did not have enough free " +
			"storage: driver d.example has not told how much of class late there is", "user", with(claim(), counting()), nil},
		{
			"no room", "Warning ns/p FailedScheduling: ", "0/1 nodes are available: n1: node(s) did not have enough free " +
				"storage: claim c asks for 1Gi, class late has volumes of up to 1Mi there", "user",
			with(claim(), counting(), room("1Mi")), nil,
		},
	} {
		if c.change == nil {
			c.change = func(*corev1.Pod) {}
		}
		scene{c.name, append(c.objects, pod(c.change)), nil, []runtime.Object{
			pod(c.change, refused(c.message)),
		}, []string{tellPod}, []string{c.told + c.message + " (" + c.next + ")"}}.play(t)
	}
	scene{
		"another reason than before", with(pod(refused("old"))), nil,
		[]runtime.Object{pod(refused(`persistentvolumeclaim "c" not found`))},
		[]string{tellPod},
		[]string{`Warning ns/p ClaimMissing: persistentvolumeclaim "c" not found (user)`},
	}.play(t)
	says := refused(`persistentvolumeclaim "c" not found`)
	scene{"the same reason as before", with(pod(says)), nil, []runtime.Object{pod(says)}, nil, nil}.play(t)
}

// counting is a driver whose capacity counts.
func counting() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)},
	}
}

// room is what there is of the class everywhere.
func room(size string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "room"}, StorageClassName: "late",
		NodeTopology: &metav1.LabelSelector{}, Capacity: ptr.To(resource.MustParse(size)),
	}
}

// TestHolder: a claim for one Pod is free when the other one has ended, and it does
// not keep itself from it.
func TestHolder(t *testing.T) {
	for name, p := range map[string]*corev1.Pod{
		"failed":         pod(called("q", "c"), on("n1"), is(corev1.PodFailed)),
		"succeeded":      pod(called("q", "c"), on("n1"), is(corev1.PodSucceeded)),
		"without a node": pod(called("q", "c"), gated), "of another claim": pod(called("q", "x"), on("n1")),
	} {
		scene{name, with(pod(), p, claim(bound, forOnePod),
			pv(boundTo("c"))), nil, []runtime.Object{pod(on("n1")), p}, []string{bindPod}, []string{toldOfPlace}}.play(t)
	}
	shared := pod(called("q", "c"), on("n1"))
	scene{"for many", with(pod(), shared, claim(bound),
		pv(boundTo("c"))), nil, []runtime.Object{pod(on("n1")), shared}, []string{bindPod}, []string{toldOfPlace}}.play(t)
}

// TestLimit: what is attached to a node counts, and what Pods there will have, each
// volume once.
func TestLimit(t *testing.T) {
	attached := func(name, volumeName string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volumeName},
		}}
	}
	inline := attached("va", "")
	inline.Spec.Source.PersistentVolumeName = nil
	elsewhere := attached("va", "gone")
	elsewhere.Spec.NodeName = "n2"
	others := attached("va", "gone")
	others.Spec.Attacher = "other"
	q := pod(called("q", "x"), on("n1"))
	for _, c := range []struct {
		name    string
		fits    bool
		objects []runtime.Object
	}{
		{"nothing", true, nil},
		{"itself attached", true, []runtime.Object{attached("va", "pv-c")}},
		{"another one attached", false, []runtime.Object{attached("va", "pv-x"), pv(boundTo("x"))}},
		{"one attached whose object is gone", false, []runtime.Object{attached("va", "gone")}},
		{"one attached that has no object", false, []runtime.Object{inline}},
		{"one attached elsewhere", true, []runtime.Object{elsewhere}},
		{"another driver's", true, []runtime.Object{others}},
		{"a Pod's", false, []runtime.Object{q, claim(named("x"), bound), pv(boundTo("x"))}},
		{"a Pod's that is being made", false, []runtime.Object{q, claim(named("x"), selected("n1"))}},
		{"a Pod's that has ended", true, []runtime.Object{
			pod(called("q", "x"), on("n1"), is(corev1.PodSucceeded)), claim(named("x"), bound), pv(boundTo("x")),
		}},
		{"a Pod's without a claim", true, []runtime.Object{q}},
		{"a Pod's with the same", true, []runtime.Object{pod(called("q", "c"), on("n1"))}},
		{"a Pod's of which there is no class", true, []runtime.Object{q, claim(named("x"), of("none"))}},
		{"a Pod's that is no CSI volume", true, []runtime.Object{
			q, claim(named("x"), bound), pv(boundTo("x"), func(v *corev1.PersistentVolume) { v.Spec.CSI = nil }),
		}},
	} {
		objects := append(c.objects, pod(), claim(bound), pv(boundTo("c")), node("n1"), limitedTo(1, "n1"),
			class("late", driver))
		s := scene{c.name, objects, nil, []runtime.Object{pod(on("n1"))}, []string{bindPod}, []string{toldOfPlace}}
		if !c.fits {
			const why = "0/1 nodes are available: n1: driver d.example has its limit of 1 volumes there"
			s.after, s.writes, s.told = []runtime.Object{pod(refused(why))}, []string{tellPod},
				[]string{"Warning ns/p FailedScheduling: " + why + " (user)"}
		}
		s.play(t)
	}
}
