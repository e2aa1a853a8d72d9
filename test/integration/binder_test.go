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

// makeClass makes a class of the driver whose claims are bound at once.
func (p *plane) makeClass(name string, change ...func(*storagev1.StorageClass)) {
	p.t.Helper()
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: p.conn.Name}
	for _, f := range change {
		f(c)
	}
	_, err := p.client.StorageV1().StorageClasses().Create(p.ctx, c, metav1.CreateOptions{})
	p.must(err)
}

// makeClaim makes a claim of 2Gi.
func (p *plane) makeClaim(name, class string, change ...func(*corev1.PersistentVolumeClaim)) {
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

// makeVolume makes a volume object by hand.
func (p *plane) makeVolume(name, size, class string, change ...func(*corev1.PersistentVolume)) {
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

// volumePhase waits until a volume object has a phase.
func (p *plane) volumePhase(name string, want corev1.PersistentVolumePhase) {
	p.t.Helper()
	p.eventually(func() string {
		if v := p.getVolume(name); v.Status.Phase != want {
			return fmt.Sprintf("volume %s is %q with %+v, not %s", name, v.Status.Phase, v.Spec.ClaimRef, want)
		}
		return ""
	})
}

// claimPhase waits until a claim has a phase and a volume.
func (p *plane) claimPhase(name string, want corev1.PersistentVolumeClaimPhase, volumeName string) {
	p.t.Helper()
	p.eventually(func() string {
		if c := p.claim(name); c.Status.Phase != want || c.Spec.VolumeName != volumeName {
			return fmt.Sprintf("claim %s is %q with volume %q, not %s with %q", name, c.Status.Phase, c.Spec.VolumeName,
				want, volumeName)
		}
		return ""
	})
}

func (p *plane) removeClaim(name string) {
	p.t.Helper()
	p.must(p.client.CoreV1().PersistentVolumeClaims("default").Delete(p.ctx, name, metav1.DeleteOptions{}))
}

func (p *plane) noClaim(name string) {
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

// TestStaticMatch: of all volumes made by hand a claim gets the smallest that
// fits in every respect (S4-009, S4-013 to S4-016).
func TestStaticMatch(t *testing.T) {
	p := newPlane(t)
	rwx := func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
	}
	block := func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }
	labels := func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"disk": "ssd"} }
	p.makeVolume("large", "10Gi", "")
	p.makeVolume("fits", "3Gi", "")
	p.makeVolume("fits-too", "4Gi", "")
	p.makeVolume("small", "1Gi", "")
	p.makeVolume("shared", "2Gi", "", rwx)
	p.makeVolume("raw", "2Gi", "", block)
	p.makeVolume("labelled", "20Gi", "", labels)
	p.makeVolume("classy", "20Gi", "byhand")
	for _, name := range []string{"large", "fits", "fits-too", "small", "shared", "raw", "labelled", "classy"} {
		p.volumePhase(name, corev1.VolumeAvailable)
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
		p.makeClaim(c.claim, c.class, c.change)
		p.claimPhase(c.claim, corev1.ClaimBound, c.want)
		p.volumePhase(c.want, corev1.VolumeBound)
	}
	p.makeClaim("none", "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
	})
	p.tells("PersistentVolumeClaim", "none", volume.ReasonFailedBinding,
		"no persistent volumes available for this claim and no storage class is set")
	p.claimPhase("none", corev1.ClaimPending, "")
	c, v := p.claim("c1"), p.getVolume("fits")
	if c.Annotations[volume.AnnBoundByController] != "yes" || c.Annotations[volume.AnnBindCompleted] != "yes" ||
		v.Annotations[volume.AnnBoundByController] != "yes" {
		t.Errorf("annotations are %v and %v", c.Annotations, v.Annotations)
	}
	if got := c.Status.Capacity.Storage().String(); got != "3Gi" || len(c.Status.AccessModes) != 1 ||
		v.Spec.ClaimRef.UID != c.UID {
		t.Errorf("status is %+v, reference %+v", c.Status, v.Spec.ClaimRef)
	}
}

// TestBoundInAdvance from the one side, the other, and both; what the user
// wrote is not marked as ours.
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
	p.makeVolume("kept", "50Gi", "", forClaim("by-volume"))
	p.makeVolume("tempting", "2Gi", "")
	p.makeVolume("asked", "60Gi", "")
	p.makeVolume("mutual", "70Gi", "", forClaim("by-both"))
	p.makeVolume("tiny", "1Gi", "")
	p.volumePhase("kept", corev1.VolumeAvailable)
	p.volumePhase("tempting", corev1.VolumeAvailable)
	p.makeClaim("by-volume", "")
	p.makeClaim("by-claim", "", named("asked"))
	p.makeClaim("by-both", "", named("mutual"))
	for _, c := range []struct {
		claim, volume             string
		claimIsOurs, volumeIsOurs bool
	}{{"by-volume", "kept", true, false}, {"by-claim", "asked", false, true}, {"by-both", "mutual", false, false}} {
		p.claimPhase(c.claim, corev1.ClaimBound, c.volume)
		_, claimIsOurs := p.claim(c.claim).Annotations[volume.AnnBoundByController]
		_, volumeIsOurs := p.getVolume(c.volume).Annotations[volume.AnnBoundByController]
		if claimIsOurs != c.claimIsOurs || volumeIsOurs != c.volumeIsOurs {
			t.Errorf("%s: the claim's half is ours: %v, the volume's: %v", c.claim, claimIsOurs, volumeIsOurs)
		}
	}
	p.makeClaim("mismatch", "", named("tiny"))
	p.tells("PersistentVolumeClaim", "mismatch", volume.ReasonVolumeMismatch, "tiny", "1Gi", "2Gi")
	p.makeClaim("taken", "", named("kept"))
	p.tells("PersistentVolumeClaim", "taken", volume.ReasonFailedBinding, "already bound to a different claim",
		"default/by-volume")
	p.makeClaim("missing", "", named("later"))
	p.tells("PersistentVolumeClaim", "missing", volume.ReasonVolumeMissing, "later")
	p.claimPhase("missing", corev1.ClaimPending, "later")
	p.makeVolume("later", "2Gi", "")
	p.claimPhase("missing", corev1.ClaimBound, "later")
}

// TestTwoClaimsForOneVolume: somebody else's write meets the binder's, and then
// one claim wins, and the other takes the next volume.
func TestTwoClaimsForOneVolume(t *testing.T) {
	p := newPlane(t)
	meet := sync.Once{}
	p.writes.onWrite(func(w write) {
		if w.role == "binder" && w.path == "/api/v1/persistentvolumes/only" {
			meet.Do(func() { p.patchVolume("only", `{"metadata":{"labels":{"touched":"yes"}}}`) })
		}
	})
	p.makeVolume("only", "2Gi", "")
	p.volumePhase("only", corev1.VolumeAvailable)
	p.makeClaim("claim-one", "")
	p.makeClaim("claim-two", "")
	p.volumePhase("only", corev1.VolumeBound)
	winner := p.getVolume("only").Spec.ClaimRef.Name
	loser := map[string]string{"claim-one": "claim-two", "claim-two": "claim-one"}[winner]
	p.claimPhase(winner, corev1.ClaimBound, "only")
	p.tells("PersistentVolumeClaim", loser, volume.ReasonFailedBinding)
	p.claimPhase(loser, corev1.ClaimPending, "")
	p.makeVolume("next", "2Gi", "")
	p.claimPhase(loser, corev1.ClaimBound, "next")
	if !slices.ContainsFunc(p.writes.since(0),
		func(w write) bool { return w.role == "binder" && w.code == http.StatusConflict }) {
		t.Error("nothing met")
	}
}

// TestLostClaim: the volume object of a bound claim goes away, comes back as
// another claim's, and comes back as its own.
func TestLostClaim(t *testing.T) {
	p := newPlane(t)
	p.makeVolume("v", "2Gi", "")
	p.makeClaim("c", "")
	p.claimPhase("c", corev1.ClaimBound, "v")
	destroy := func() {
		t.Helper()
		volumes := p.client.CoreV1().PersistentVolumes()
		p.must(volumes.Delete(p.ctx, "v", metav1.DeleteOptions{}))
		// One that is not bound goes by itself.
		if _, err := volumes.Patch(p.ctx, "v", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); !gone(err) {
			p.must(err)
		}
	}
	destroy()
	p.claimPhase("c", corev1.ClaimLost, "v")
	p.tells("PersistentVolumeClaim", "c", volume.ReasonClaimLost, "v")
	if c := p.claim("c"); c.Status.Capacity != nil || c.Status.AccessModes != nil {
		t.Errorf("a lost claim has %+v", c.Status)
	}
	refer := func(uid types.UID) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: "c", UID: uid,
			}
		}
	}
	p.makeVolume("v", "2Gi", "", refer("another"))
	p.tells("PersistentVolumeClaim", "c", volume.ReasonClaimUIDMismatch, "volume v ", "uid another",
		string(p.claim("c").UID))
	p.claimPhase("c", corev1.ClaimLost, "v")
	p.volumePhase("v", corev1.VolumeReleased)
	destroy()
	p.makeVolume("v", "2Gi", "", refer(p.claim("c").UID))
	p.claimPhase("c", corev1.ClaimBound, "v")
	p.volumePhase("v", corev1.VolumeBound)
}

// TestReleased: a volume whose claim has gone is nobody's, not even a claim's
// of the same name, until somebody says so.
func TestReleased(t *testing.T) {
	p := newPlane(t)
	p.makeVolume("v", "2Gi", "")
	p.makeClaim("c", "")
	p.claimPhase("c", corev1.ClaimBound, "v")
	p.removeClaim("c")
	p.volumePhase("v", corev1.VolumeReleased)
	p.makeClaim("c", "")
	p.tells("PersistentVolumeClaim", "c", volume.ReasonFailedBinding, "no persistent volumes available")
	p.claimPhase("c", corev1.ClaimPending, "")
	p.volumePhase("v", corev1.VolumeReleased)
	p.patchVolume("v", `{"spec":{"claimRef":null}}`)
	p.claimPhase("c", corev1.ClaimBound, "v")
	// A policy that nobody carries out is told.
	p.makeVolume("recycled", "2Gi", "old", func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}}
	})
	p.makeClaim("r", "old")
	p.claimPhase("r", corev1.ClaimBound, "recycled")
	p.removeClaim("r")
	p.volumePhase("recycled", corev1.VolumeFailed)
	p.tells("PersistentVolume", "recycled", volume.ReasonFailedRecycle, "nobody recycles it")
	p.patchVolume("recycled", `{"spec":{"claimRef":null}}`)
	p.volumePhase("recycled", corev1.VolumeAvailable)
}

// TestClasses: a class that comes later, by field and by the older annotation,
// and a default that comes later.
func TestClasses(t *testing.T) {
	p := newPlane(t)
	older := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = nil
		c.Annotations = map[string]string{volume.AnnBetaStorageClass: "fast"}
	}
	p.makeClaim("new", "fast")
	p.makeClaim("old", "", older)
	p.makeClaim("nameless", "", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil })
	p.makeClaim("classless", "")
	for _, c := range []string{"new", "old"} {
		p.tells("PersistentVolumeClaim", c, volume.ReasonProvisioningFailed, `storageclass.storage.k8s.io "fast" not found`)
	}
	p.tells("PersistentVolumeClaim", "nameless", volume.ReasonFailedBinding)
	p.makeClass("fast")
	p.bound("new")
	p.bound("old")
	if v := p.getVolume(p.claim("old").Spec.VolumeName); v.Spec.StorageClassName != "fast" {
		t.Errorf("the volume's class is %q", v.Spec.StorageClassName)
	}
	p.makeClass("usual", func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
	})
	p.bound("nameless")
	p.tells("PersistentVolumeClaim", "nameless", volume.ReasonDefaultClassAssigned, "usual")
	// "" is no class, and no default.
	p.claimPhase("classless", corev1.ClaimPending, "")
	if c := p.claim("classless"); *c.Spec.StorageClassName != "" {
		t.Errorf("class %q was given to a claim that wants none", *c.Spec.StorageClassName)
	}
}

// TestConflicts: somebody else changes each object just before a controller
// first writes it. All goes well in the end, and nothing is made twice.
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
	p.makeClass("fast")
	p.makeVolume("v", "2Gi", "")
	p.makeClaim("static", "")
	p.makeClaim("dynamic", "fast")
	p.claimPhase("static", corev1.ClaimBound, "v")
	p.bound("dynamic")
	p.settled()
	if n := p.calls("CreateVolume"); n != 1 {
		t.Errorf("%d calls of CreateVolume", n)
	}
	p.removeClaim("static")
	p.removeClaim("dynamic")
	p.volumePhase("v", corev1.VolumeReleased)
	p.nothingLeft("v")
	if conflicts < 8 {
		t.Errorf("only %d writes met a change", conflicts)
	}
}

// objectOf returns resource and name of what a request's path names.
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
