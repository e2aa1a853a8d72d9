package hostile

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/mount"
)

const stagedAt, shownAt, broughtAt = "/n1/staged", "/n1/target", "/n1/brought"

// scenery is a life with a state of the API, the journals and the mount table.
type scenery struct {
	*snapshot
	life *life
	// volume is what its claim has at the driver, own what its other Pod brings.
	volume, own *driverVolume
}

// atRest returns a life at rest: a claim with a Pod, a Pod with an inline volume, and a claim whose volume
// was retained.
func atRest() scenery {
	d := newDriver("d", newMood(1), nil, func(string) {})
	d.kind = kind{stages: true, shows: true, grows: true, growsNodes: true}
	l := newLife("ns", 1, nil, d)
	l.claims, l.loose, l.kept = []*claim{{name: "c0", size: 2, pods: []string{"p0"}}}, []string{"p1"},
		map[string]bool{"pv-kept": true}
	sum := sha256.Sum256([]byte("uid-p1v"))
	own := "csi-" + hex.EncodeToString(sum[:])
	for _, id := range []string{"v-0", "v-kept", own} {
		d.disks[id] = newDisk()
		d.disks[id].bytes, d.disks[id].formatted = 2<<20, 2<<20
	}
	v := d.disks["v-0"]
	v.attached["n1"], v.staged["n1"], v.published["n1"] = true, stagedAt, map[string]bool{shownAt: true}
	d.disks[own].published["n1"] = map[string]bool{broughtAt: true}
	s := &snapshot{
		claims:  []corev1.PersistentVolumeClaim{boundClaim()},
		volumes: []corev1.PersistentVolume{volumeObject("pv-0", "v-0", "c0"), volumeObject("pv-kept", "v-kept", "gone")},
		pods: []corev1.Pod{
			pod("p0", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c0"}}),
			pod("p1", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}),
		},
		attachments: []storagev1.VolumeAttachment{{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: storagev1.VolumeAttachmentStatus{Attached: true},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "d", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-0")},
			},
		}},
		nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			VolumesInUse: []corev1.UniqueVolumeName{"kubernetes.io/csi/d^v-0"},
		}}},
		records: map[string][]*decide.Record{"n1": {
			{Driver: "d", Handle: "v-0", Targets: []decide.Target{{Path: shownAt}}},
			{Driver: "d", Handle: own, Targets: []decide.Target{{Path: broughtAt}}},
		}},
		mounts: map[string][]string{"n1": {stagedAt, shownAt, broughtAt}},
	}
	return scenery{s, l, v, d.disks[own]}
}

func size() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Mi")}
}

func boundClaim() corev1.PersistentVolumeClaim {
	o := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c0"}}
	o.Spec.VolumeName, o.Spec.StorageClassName = "pv-0", ptr.To("ns-now")
	o.Status.Phase, o.Status.Capacity = corev1.ClaimBound, size()
	return o
}

func volumeObject(name, handle, claim string) corev1.PersistentVolume {
	o := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Capacity, o.Spec.ClaimRef = size(), &corev1.ObjectReference{Namespace: "ns", Name: claim}
	o.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle}
	if o.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete; claim == "gone" {
		o.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	return o
}

func pod(name string, source corev1.VolumeSource) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.NodeName, p.Spec.Volumes = "n1", []corev1.Volume{{Name: "v", VolumeSource: source}}
	p.Status.Conditions = []corev1.PodCondition{{Type: "volplane.dev/VolumesMounted", Status: corev1.ConditionTrue}}
	return p
}

func (s scenery) wrong() string {
	if text := s.life.wrong(s.snapshot); text != "" {
		return text
	}
	return mountsBeside(s.snapshot, []*life{s.life})
}

// overstate has the API report capacity that the driver does not have.
func (s scenery) overstate() {
	s.capacities = []storagev1.CSIStorageCapacity{{StorageClassName: "ns-late", Capacity: ptr.To(size()["storage"])}}
}

// TestOracleSees: the comparison detects each kind of loss and leak.
func TestOracleSees(t *testing.T) {
	if text := atRest().wrong(); text != "" {
		t.Fatalf("what is at rest is wrong: %s", text)
	}
	for name, c := range map[string]struct {
		spoil func(scenery)
		want  string
	}{
		"a volume at the driver alone": {
			func(s scenery) { s.life.driver.disks["v-1"] = newDisk() }, "v-1 of the driver has no object: leaked",
		},
		"a volume that the driver has not": {
			func(s scenery) { delete(s.life.driver.disks, "v-0") }, "pv-0 is not at the driver: lost",
		},
		"a retained volume that the driver has not": {
			func(s scenery) { delete(s.life.driver.disks, "v-kept") }, "pv-kept is not at the driver: lost",
		},
		"a retained volume without object": {func(s scenery) {
			delete(s.life.driver.disks, "v-kept")
			s.volumes = s.volumes[:1]
		}, "pv-kept was to be kept"},
		"two objects of a volume": {func(s scenery) { s.volumes[1].Spec.CSI.VolumeHandle = "v-0" }, "two volume objects"},
		"a volume that may go": {
			func(s scenery) { s.volumes[1].Spec.PersistentVolumeReclaimPolicy = "Delete" }, "was not deleted",
		},
		"a claim that is gone": {func(s scenery) { s.claims = nil }, "claim c0 is lost"},
		"a claim that does not go": {
			func(s scenery) { s.life.claims[0].gone, s.life.claims[0].pods = true, nil }, "claim c0 is still there",
		},
		"a claim without volume": {
			func(s scenery) { s.claims[0].Status.Phase = corev1.ClaimPending }, "claim c0 is Pending",
		},
		"more promised than formatted":  {func(s scenery) { s.volume.formatted = 1 << 20 }, "formatted 1048576"},
		"more promised than there is":   {func(s scenery) { s.volume.bytes = 1 << 20 }, "the driver 1048576"},
		"less than was asked for":       {func(s scenery) { s.life.claims[0].size = 3 }, "of 3 Mi"},
		"a Pod that is gone":            {func(s scenery) { s.pods = s.pods[1:] }, "pod p0 is lost"},
		"a Pod that does not go":        {func(s scenery) { s.life.loose = nil }, "pod p1 is still there"},
		"a Pod without its volume":      {func(s scenery) { s.pods[0].Status.Conditions = nil }, "pod p0 has no volume"},
		"attached and nobody says so":   {func(s scenery) { s.attachments = nil }, "attached are"},
		"attached at another node, too": {func(s scenery) { s.volume.attached["n2"] = true }, "attached are"},
		"not attached and used":         {func(s scenery) { s.volume.attached = map[string]bool{} }, "attached are"},
		"an attachment that goes": {
			func(s scenery) { s.attachments[0].DeletionTimestamp = &metav1.Time{} }, "attachment a",
		},
		"staged and nobody wants it": {
			func(s scenery) { s.life.driver.disks["v-kept"].staged["n2"] = "/n2/staged" }, "nothing is mounted",
		},
		"counted and nobody wants it": {
			func(s scenery) {
				s.life.driver.kind.shows, s.life.driver.disks["v-kept"].staged["n2"] = false, "/n2/x"
			}, "node n2",
		},
		"published once too often": {func(s scenery) { s.volume.published["n1"]["/n1/old"] = true }, "nothing is mounted"},
		"a mount is gone":          {func(s scenery) { s.mounts["n1"] = s.mounts["n1"][1:] }, "nothing is mounted"},
		"a record is gone":         {func(s scenery) { s.records["n1"] = s.records["n1"][1:] }, "the journal"},
		"a record is left":         {func(s scenery) { s.records["n2"] = s.records["n1"][:1] }, "the journal"},
		"an inline volume is left": {func(s scenery) { s.life.loose, s.pods = nil, s.pods[:1] }, "node n1"},
		"an inline volume is lost": {func(s scenery) { s.own.published = nil }, "node n1"},
		"a mount that no driver knows": {
			func(s scenery) { s.mounts["n2"] = []string{"/n2/strange"} }, "mounted at /n2/strange",
		},
		"a node that says too little": {func(s scenery) { s.nodes[0].Status.VolumesInUse = nil }, "node n1 says"},
		"a node that says too much": {func(s scenery) {
			s.nodes[0].Status.VolumesInUse = append(s.nodes[0].Status.VolumesInUse, "kubernetes.io/csi/d^v-kept")
		}, "node n1 says"},
		"room that nobody has": {scenery.overstate, "class ns-late has room for"},
		"an intent that is not resolved": {
			func(s scenery) { s.intents = []corev1.ConfigMap{{Data: map[string]string{"u": `{"driver":"d"}`}}} }, "intent is left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := atRest()
			c.spoil(s)
			if text := s.wrong(); !strings.Contains(text, c.want) {
				t.Errorf("%q, wanted %q", text, c.want)
			}
		})
	}
}

// TestBelievable: a driver returns every false code except those that no control plane can detect.
func TestBelievable(t *testing.T) {
	for name, c := range map[string]struct {
		scene scene
		work  bool
		never string
	}{
		"made by this call": {scene{method: "CreateVolume"}, true, "InvalidArgument NotFound AlreadyExists " +
			"PermissionDenied ResourceExhausted OutOfRange Unimplemented Unauthenticated"},
		"made by an earlier call": {
			scene{method: "CreateVolume", there: true}, false, "InvalidArgument NotFound ResourceExhausted OutOfRange",
		},
		"never made":            {scene{method: "CreateVolume"}, false, ""},
		"not deleted":           {scene{method: "DeleteVolume", there: true}, false, ""},
		"not detached":          {scene{method: "ControllerUnpublishVolume", there: true}, false, ""},
		"staged and to be seen": {scene{method: "NodeStageVolume", there: true}, true, ""},
		"staged and not shown": {scene{method: "NodeStageVolume", there: true, hidden: true}, true, "InvalidArgument " +
			"NotFound AlreadyExists PermissionDenied FailedPrecondition OutOfRange Unimplemented Unauthenticated"},
		"not unstaged, not shown": {scene{method: "NodeUnstageVolume", there: true, hidden: true}, false, "NotFound"},
		"not unstaged, shown":     {scene{method: "NodeUnstageVolume", there: true}, false, ""},
		"not unpublished":         {scene{method: "NodeUnpublishVolume", there: true, hidden: true}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var never []string
			for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
				if !slices.Contains(c.scene.believable(c.work), code) {
					never = append(never, code.String())
				}
			}
			if got := strings.Join(never, " "); got != c.never {
				t.Errorf("never %q, wanted %q", got, c.never)
			}
		})
	}
}
