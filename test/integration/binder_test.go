package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// createClass creates a class of the driver with immediate binding.
func (p *plane) createClass(name string, change ...func(*storagev1.StorageClass)) {
	p.t.Helper()
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: p.conn.Name}
	for _, f := range change {
		f(c)
	}
	_, err := p.client.StorageV1().StorageClasses().Create(p.ctx, c, metav1.CreateOptions{})
	p.must(err)
}

// createClaim creates a claim of 2Gi.
func (p *plane) createClaim(name, class string, change ...func(*corev1.PersistentVolumeClaim)) {
	p.t.Helper()
	c := claimOf(name, class)
	for _, f := range change {
		f(c)
	}
	_, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, c, metav1.CreateOptions{})
	p.must(err)
}

func claimOf(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
		},
	}}
}

// createVolume creates a volume object that no provisioner made.
func (p *plane) createVolume(name, size, class string, change ...func(*corev1.PersistentVolume)) {
	p.t.Helper()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: p.conn.Name, VolumeHandle: "by-hand-" + name},
		},
	}}
	for _, f := range change {
		f(v)
	}
	_, err := p.client.CoreV1().PersistentVolumes().Create(p.ctx, v, metav1.CreateOptions{})
	p.must(err)
}

func (p *plane) getVolume(name string) *corev1.PersistentVolume {
	p.t.Helper()
	v, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, name, metav1.GetOptions{})
	p.must(err)
	return v
}

// waitForVolumePhase waits until a volume object has a phase.
func (p *plane) waitForVolumePhase(name string, want corev1.PersistentVolumePhase) {
	p.t.Helper()
	p.eventually(func() string {
		if v := p.getVolume(name); v.Status.Phase != want {
			return fmt.Sprintf("volume %s is %q with %+v, not %s", name, v.Status.Phase, v.Spec.ClaimRef, want)
		}
		return ""
	})
}

// waitForClaimPhase waits until a claim has a phase and a volume.
func (p *plane) waitForClaimPhase(name string, want corev1.PersistentVolumeClaimPhase, volumeName string) {
	p.t.Helper()
	p.eventually(func() string {
		if c := p.getClaim(name); c.Status.Phase != want || c.Spec.VolumeName != volumeName {
			return fmt.Sprintf("claim %s is %q with volume %q, not %s with %q", name, c.Status.Phase, c.Spec.VolumeName,
				want, volumeName)
		}
		return ""
	})
}

func (p *plane) deleteClaim(name string) {
	p.t.Helper()
	p.must(p.client.CoreV1().PersistentVolumeClaims("default").Delete(p.ctx, name, metav1.DeleteOptions{}))
}

func (p *plane) waitForNoClaim(name string) {
	p.t.Helper()
	p.eventually(func() string {
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(p.ctx, name, metav1.GetOptions{})
		if gone(err) {
			return ""
		}
		return fmt.Sprintf("claim %s is there, finalizers %v, %v", name, c.Finalizers, err)
	})
}

func (p *plane) patchClaim(name, body string) {
	p.t.Helper()
	_, err := p.client.CoreV1().PersistentVolumeClaims("default").Patch(p.ctx, name, types.MergePatchType, []byte(body),
		metav1.PatchOptions{})
	p.must(err)
}

func (p *plane) patchVolume(name, body string) {
	p.t.Helper()
	_, err := p.client.CoreV1().PersistentVolumes().Patch(p.ctx, name, types.MergePatchType, []byte(body),
		metav1.PatchOptions{})
	p.must(err)
}

// TestStaticMatch: of the volumes that no provisioner made, a claim gets the smallest one that fits in
// every respect (S4-009, S4-013 to S4-016).
func TestStaticMatch(t *testing.T) {
	p := newPlane(t)
	rwx := func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
	}
	block := func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }
	labels := func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"disk": "ssd"} }
	p.createVolume("large", "10Gi", "")
	p.createVolume("fits", "3Gi", "")
	p.createVolume("fits-too", "4Gi", "")
	p.createVolume("small", "1Gi", "")
	p.createVolume("shared", "2Gi", "", rwx)
	p.createVolume("raw", "2Gi", "", block)
	p.createVolume("labelled", "20Gi", "", labels)
	p.createVolume("classy", "20Gi", "byhand")
	for _, name := range []string{"large", "fits", "fits-too", "small", "shared", "raw", "labelled", "classy"} {
		p.waitForVolumePhase(name, corev1.VolumeAvailable)
	}
	for _, c := range []struct {
		argues, claim, class, want string
		change                     func(*corev1.PersistentVolumeClaim)
	}{
		{
			"a tighter set of access modes goes before a smaller size", "c1", "", "fits", func(*corev1.PersistentVolumeClaim) {},
		},
		{"then the next smallest", "c2", "", "fits-too", func(*corev1.PersistentVolumeClaim) {}},
		{"the modes have to be offered", "c3", "", "shared", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}},
		{"raw block is raw block", "c4", "", "raw", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}},
		{"a selector chooses", "c5", "", "labelled", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
		}},
		{"an equal class only", "c6", "byhand", "classy", func(*corev1.PersistentVolumeClaim) {}},
	} {
		t.Log(c.argues)
		p.createClaim(c.claim, c.class, c.change)
		p.waitForClaimPhase(c.claim, corev1.ClaimBound, c.want)
		p.waitForVolumePhase(c.want, corev1.VolumeBound)
	}
	p.createClaim("none", "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
	})
	p.waitForEvent("PersistentVolumeClaim", "none", volume.ReasonFailedBinding,
		"no persistent volumes available for this claim and no storage class is set")
	p.waitForClaimPhase("none", corev1.ClaimPending, "")
	c, v := p.getClaim("c1"), p.getVolume("fits")
	if c.Annotations[volume.AnnBoundByController] != "yes" || c.Annotations[volume.AnnBindCompleted] != "yes" ||
		v.Annotations[volume.AnnBoundByController] != "yes" {
		t.Errorf("annotations are %v and %v", c.Annotations, v.Annotations)
	}
	if got := c.Status.Capacity.Storage().String(); got != "3Gi" || len(c.Status.AccessModes) != 1 ||
		v.Spec.ClaimRef.UID != c.UID {
		t.Errorf("status is %+v, reference %+v", c.Status, v.Spec.ClaimRef)
	}
}

// TestBoundInAdvance: the claim names the volume, the volume names the claim, or both do. What the user
// wrote is not annotated as written by the controller.
func TestBoundInAdvance(t *testing.T) {
	p := newPlane(t)
	forClaim := func(name string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name}
		}
	}
	named := func(v string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = v }
	}
	p.createVolume("kept", "50Gi", "", forClaim("by-volume"))
	p.createVolume("tempting", "2Gi", "")
	p.createVolume("asked", "60Gi", "")
	p.createVolume("mutual", "70Gi", "", forClaim("by-both"))
	p.createVolume("tiny", "1Gi", "")
	p.waitForVolumePhase("kept", corev1.VolumeAvailable)
	p.waitForVolumePhase("tempting", corev1.VolumeAvailable)
	p.createClaim("by-volume", "")
	p.createClaim("by-claim", "", named("asked"))
	p.createClaim("by-both", "", named("mutual"))
	for _, c := range []struct {
		claim, volume             string
		claimIsOurs, volumeIsOurs bool
	}{{"by-volume", "kept", true, false}, {"by-claim", "asked", false, true}, {"by-both", "mutual", false, false}} {
		p.waitForClaimPhase(c.claim, corev1.ClaimBound, c.volume)
		_, claimIsOurs := p.getClaim(c.claim).Annotations[volume.AnnBoundByController]
		_, volumeIsOurs := p.getVolume(c.volume).Annotations[volume.AnnBoundByController]
		if claimIsOurs != c.claimIsOurs || volumeIsOurs != c.volumeIsOurs {
			t.Errorf("%s: the claim's half is ours: %v, the volume's: %v", c.claim, claimIsOurs, volumeIsOurs)
		}
	}
	p.createClaim("mismatch", "", named("tiny"))
	p.waitForEvent("PersistentVolumeClaim", "mismatch", volume.ReasonVolumeMismatch, "tiny", "1Gi", "2Gi")
	p.createClaim("taken", "", named("kept"))
	p.waitForEvent("PersistentVolumeClaim", "taken", volume.ReasonFailedBinding, "already bound to a different claim",
		"default/by-volume")
	p.createClaim("missing", "", named("later"))
	p.waitForEvent("PersistentVolumeClaim", "missing", volume.ReasonVolumeMissing, "later")
	p.waitForClaimPhase("missing", corev1.ClaimPending, "later")
	p.createVolume("later", "2Gi", "")
	p.waitForClaimPhase("missing", corev1.ClaimBound, "later")
}

// TestTwoClaimsForOneVolume: another client's write conflicts with the binder's. One claim gets the volume,
// and the other claim gets the next one.
func TestTwoClaimsForOneVolume(t *testing.T) {
	p := newPlane(t)
	meet := sync.Once{}
	p.writes.onWrite(func(w write) {
		if w.role == "binder" && w.path == "/api/v1/persistentvolumes/only" {
			meet.Do(func() { p.patchVolume("only", `{"metadata":{"labels":{"touched":"yes"}}}`) })
		}
	})
	p.createVolume("only", "2Gi", "")
	p.waitForVolumePhase("only", corev1.VolumeAvailable)
	p.createClaim("claim-one", "")
	p.createClaim("claim-two", "")
	p.waitForVolumePhase("only", corev1.VolumeBound)
	winner := p.getVolume("only").Spec.ClaimRef.Name
	loser := map[string]string{"claim-one": "claim-two", "claim-two": "claim-one"}[winner]
	p.waitForClaimPhase(winner, corev1.ClaimBound, "only")
	p.waitForEvent("PersistentVolumeClaim", loser, volume.ReasonFailedBinding)
	p.waitForClaimPhase(loser, corev1.ClaimPending, "")
	p.createVolume("next", "2Gi", "")
	p.waitForClaimPhase(loser, corev1.ClaimBound, "next")
	if !slices.ContainsFunc(p.writes.since(0),
		func(w write) bool { return w.role == "binder" && w.code == http.StatusConflict }) {
		t.Error("nothing met")
	}
}

// TestLostClaim: the volume object of a bound claim is deleted, created again for another claim, and then
// for its own.
func TestLostClaim(t *testing.T) {
	p := newPlane(t)
	p.createVolume("v", "2Gi", "")
	p.createClaim("c", "")
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	destroy := func() {
		t.Helper()
		volumes := p.client.CoreV1().PersistentVolumes()
		p.must(volumes.Delete(p.ctx, "v", metav1.DeleteOptions{}))
		// One that is not bound is removed by itself.
		if _, err := volumes.Patch(p.ctx, "v", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); !gone(err) {
			p.must(err)
		}
	}
	destroy()
	p.waitForClaimPhase("c", corev1.ClaimLost, "v")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonClaimLost, "v")
	if c := p.getClaim("c"); c.Status.Capacity != nil || c.Status.AccessModes != nil {
		t.Errorf("a lost claim has %+v", c.Status)
	}
	refer := func(uid types.UID) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: "c", UID: uid,
			}
		}
	}
	p.createVolume("v", "2Gi", "", refer("another"))
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonClaimUIDMismatch, "volume v ", "uid another",
		string(p.getClaim("c").UID))
	p.waitForClaimPhase("c", corev1.ClaimLost, "v")
	p.waitForVolumePhase("v", corev1.VolumeReleased)
	destroy()
	p.createVolume("v", "2Gi", "", refer(p.getClaim("c").UID))
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	p.waitForVolumePhase("v", corev1.VolumeBound)
}

// TestReleased: a volume whose claim is deleted is for no other claim, not even for one of the same name,
// until a user clears its claimRef.
func TestReleased(t *testing.T) {
	p := newPlane(t)
	p.createVolume("v", "2Gi", "")
	p.createClaim("c", "")
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	p.deleteClaim("c")
	p.waitForVolumePhase("v", corev1.VolumeReleased)
	p.createClaim("c", "")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonFailedBinding, "no persistent volumes available")
	p.waitForClaimPhase("c", corev1.ClaimPending, "")
	p.waitForVolumePhase("v", corev1.VolumeReleased)
	p.patchVolume("v", `{"spec":{"claimRef":null}}`)
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	// A policy that no controller carries out is reported.
	p.createVolume("recycled", "2Gi", "old", func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}}
	})
	p.createClaim("r", "old")
	p.waitForClaimPhase("r", corev1.ClaimBound, "recycled")
	p.deleteClaim("r")
	p.waitForVolumePhase("recycled", corev1.VolumeFailed)
	p.waitForEvent("PersistentVolume", "recycled", volume.ReasonFailedRecycle, "volplane recycles no volumes")
	p.patchVolume("recycled", `{"spec":{"claimRef":null}}`)
	p.waitForVolumePhase("recycled", corev1.VolumeAvailable)
}

// TestClasses: a class is created after its claims, which name it in the field or in the older annotation.
// A default class is created later as well.
func TestClasses(t *testing.T) {
	p := newPlane(t)
	older := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = nil
		c.Annotations = map[string]string{volume.AnnBetaStorageClass: "fast"}
	}
	p.createClaim("new", "fast")
	p.createClaim("old", "", older)
	p.createClaim("nameless", "", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil })
	p.createClaim("classless", "")
	for _, c := range []string{"new", "old"} {
		p.waitForEvent("PersistentVolumeClaim", c, volume.ReasonProvisioningFailed,
			`storageclass.storage.k8s.io "fast" not found`)
	}
	p.waitForEvent("PersistentVolumeClaim", "nameless", volume.ReasonFailedBinding)
	p.createClass("fast")
	p.waitForBound("new")
	p.waitForBound("old")
	if v := p.getVolume(p.getClaim("old").Spec.VolumeName); v.Spec.StorageClassName != "fast" {
		t.Errorf("the volume's class is %q", v.Spec.StorageClassName)
	}
	p.createClass("usual", func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
	})
	p.waitForBound("nameless")
	p.waitForEvent("PersistentVolumeClaim", "nameless", volume.ReasonDefaultClassAssigned, "usual")
	// "" means no class, not even the default one.
	p.waitForClaimPhase("classless", corev1.ClaimPending, "")
	if c := p.getClaim("classless"); *c.Spec.StorageClassName != "" {
		t.Errorf("class %q was given to a claim that wants none", *c.Spec.StorageClassName)
	}
}

// TestConflicts: another client changes each object just before a controller first writes it. Everything
// succeeds in the end, and nothing is made twice.
func TestConflicts(t *testing.T) {
	p := newPlane(t)
	var mu sync.Mutex
	first := map[string]bool{}
	conflicts := 0
	p.writes.onWrite(func(w write) {
		kind, name := objectOf(w.path)
		mu.Lock()
		before := first[w.String()]
		first[w.String()] = true
		mu.Unlock()
		if before || w.method != "PUT" {
			return
		}
		body := fmt.Appendf(nil, `{"metadata":{"annotations":{"changed":%q}}}`, w.String())
		var err error
		switch kind {
		case "persistentvolumes":
			_, err = p.client.CoreV1().PersistentVolumes().Patch(p.ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		case "persistentvolumeclaims":
			_, err = p.client.CoreV1().PersistentVolumeClaims("default").Patch(p.ctx, name, types.MergePatchType, body,
				metav1.PatchOptions{})
		default:
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			conflicts++
		}
	})
	p.createClass("fast")
	p.createVolume("v", "2Gi", "")
	p.createClaim("static", "")
	p.createClaim("dynamic", "fast")
	p.waitForClaimPhase("static", corev1.ClaimBound, "v")
	p.waitForBound("dynamic")
	p.waitForSettled()
	if n := p.calls("CreateVolume"); n != 1 {
		t.Errorf("%d calls of CreateVolume", n)
	}
	p.deleteClaim("static")
	p.deleteClaim("dynamic")
	p.waitForVolumePhase("v", corev1.VolumeReleased)
	p.nothingLeft("v")
	if conflicts < 8 {
		t.Errorf("only %d writes met a change", conflicts)
	}
}

// objectOf returns the resource and the name in the path of a request.
func objectOf(path string) (resource, name string) {
	parts := strings.Split(path, "/")
	if i := slices.Index(parts, "namespaces"); i > 0 && len(parts) > i+2 {
		parts = parts[i+2:]
	} else if len(parts) > 3 {
		parts = parts[3:]
	}
	if len(parts) < 2 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}
