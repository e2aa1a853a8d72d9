package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// TestExistingVolumeFirst: a claim gets an existing volume before one is provisioned, even if the claim has
// a class and a selector (S4-013, S4-068).
func TestExistingVolumeFirst(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createVolume("plain", "2Gi", "fast")
	p.createVolume("classless", "2Gi", "")
	p.createVolume("labelled", "9Gi", "fast", func(v *corev1.PersistentVolume) {
		v.Labels = map[string]string{"disk": "ssd"}
	})
	for _, name := range []string{"plain", "classless", "labelled"} {
		p.waitForVolumePhase(name, corev1.VolumeAvailable)
	}
	p.createClaim("choosy", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
	})
	p.waitForClaimPhase("choosy", corev1.ClaimBound, "labelled")
	p.createClaim("c", "fast")
	p.waitForClaimPhase("c", corev1.ClaimBound, "plain")
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("%d volumes were asked for, and there were some", n)
	}
	// The volume without a class does not count.
	p.createClaim("more", "fast")
	p.waitForBound("more")
	p.waitForVolumePhase("classless", corev1.VolumeAvailable)
	if all := p.creations(); len(all) != 1 || all[0].GetName() != "pvc-"+string(p.getClaim("more").UID) {
		t.Errorf("asked for: %v", all)
	}
}

// TestOlderSpellings: the annotation of a class has precedence over the field, in claim and volume (S4-005,
// S4-006). The still older annotation has no effect (S4-007).
func TestOlderSpellings(t *testing.T) {
	p := newPlane(t)
	older := map[string]string{volume.AnnBetaStorageClass: "byhand"}
	p.createVolume("v", "2Gi", "elsewhere", func(v *corev1.PersistentVolume) { v.Annotations = older })
	p.waitForVolumePhase("v", corev1.VolumeAvailable)
	p.createClaim("wrong", "elsewhere")
	p.waitForEvent("PersistentVolumeClaim", "wrong", volume.ReasonProvisioningFailed, `"elsewhere" not found`)
	p.waitForVolumePhase("v", corev1.VolumeAvailable)
	p.createClaim("right", "elsewhere", func(c *corev1.PersistentVolumeClaim) { c.Annotations = older })
	p.waitForClaimPhase("right", corev1.ClaimBound, "v")
	p.waitForClaimPhase("wrong", corev1.ClaimPending, "")

	p.createClass("fast")
	p.createClaim("oldest", "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Annotations = nil, map[string]string{"volume.alpha.kubernetes.io/storage-class": "fast"}
	})
	p.waitForEvent("PersistentVolumeClaim", "oldest", volume.ReasonFailedBinding, "no storage class is set")
	if c := p.getClaim("oldest"); c.Spec.StorageClassName != nil || p.calls("CreateVolume") > 0 {
		t.Errorf("class %v, %d calls", c.Spec.StorageClassName, p.calls("CreateVolume"))
	}
}

// TestDefaultClass: a claim without a class gets the default class when it is created (S4-012), and of two
// default classes the newer one.
func TestDefaultClass(t *testing.T) {
	p := newPlane(t)
	usual := func(c *storagev1.StorageClass) { c.Annotations = map[string]string{volume.AnnDefaultClass: "true"} }
	nameless := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
	p.createClass("plain")
	p.createClass("usual", usual)
	// The admission reads a cache of its own.
	p.eventually(func() string {
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "dry"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
				},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		p.must(err)
		if got := ptr.Deref(c.Spec.StorageClassName, ""); got != "usual" {
			return fmt.Sprintf("a new claim gets class %q", got)
		}
		return ""
	})
	p.createClaim("c", "", nameless)
	if got := ptr.Deref(p.getClaim("c").Spec.StorageClassName, ""); got != "usual" {
		t.Errorf("the claim's class is %q", got)
	}
	p.waitForBound("c")
	if v := p.getVolume(p.getClaim("c").Spec.VolumeName); v.Spec.StorageClassName != "usual" {
		t.Errorf("the volume's class is %q", v.Spec.StorageClassName)
	}
	p.createClaim("classless", "")
	p.waitForEvent("PersistentVolumeClaim", "classless", volume.ReasonFailedBinding)
	p.waitForClaimPhase("classless", corev1.ClaimPending, "")
}

// TestProvisionersElsewhere: whatever the name of a class's provisioner is, the binder requests it by an
// annotation of the claim and continues to look for a volume. No other controller acts (S4-020, S4-024,
// S4-025, S4-030).
func TestProvisionersElsewhere(t *testing.T) {
	p := newPlane(t)
	for i, name := range []string{"vendor.example.com/disk", "kubernetes.io/aws-ebs", "other.example.com"} {
		class, claim := fmt.Sprint("class", i), fmt.Sprint("c", i)
		p.createClass(class, func(c *storagev1.StorageClass) {
			c.Provisioner, c.Parameters = name, map[string]string{"tier": "1"}
		})
		p.createClaim(claim, class)
		p.waitForEvent("PersistentVolumeClaim", claim, volume.ReasonExternalProvisioning, name)
		p.waitForClaimPhase(claim, corev1.ClaimPending, "")
		c := p.getClaim(claim)
		if c.Annotations[volume.AnnStorageProvisioner] != name || c.Annotations[volume.AnnBetaStorageProvisioner] != name {
			t.Errorf("annotations are %v", c.Annotations)
		}
		// What the provisioner makes is a volume that matches.
		p.createVolume("made"+claim, "2Gi", class)
		p.waitForClaimPhase(claim, corev1.ClaimBound, "made"+claim)
	}
	p.waitForSettled()
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("the driver was called %d times for others", n)
	}
}

// TestReclaimPolicies: only a volume of a driver that runs here, whose policy is Delete and whose claim is
// gone, is deleted (S4-055, S4-057 to S4-060, S1-107).
func TestReclaimPolicies(t *testing.T) {
	p := newPlane(t)
	deletes := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	}
	by := func(driver string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Annotations, v.Spec.CSI.Driver = map[string]string{volume.AnnProvisionedBy: driver}, driver
		}
	}
	nfs := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}}
	}
	p.createVolume("retained", "2Gi", "a", by(p.conn.Name))
	p.createVolume("foreign", "2Gi", "b", by("other.example.com"), deletes)
	p.createVolume("inside", "2Gi", "c", nfs, deletes)
	p.createVolume("deleted", "2Gi", "d", by(p.conn.Name), deletes)
	for class, name := range map[string]string{"a": "retained", "b": "foreign", "c": "inside", "d": "deleted"} {
		p.createClaim(class, class)
		p.waitForClaimPhase(class, corev1.ClaimBound, name)
	}
	p.finalizer("deleted", true)
	for _, class := range []string{"a", "b", "c", "d"} {
		p.deleteClaim(class)
	}
	p.waitForNoVolume("deleted")
	for _, name := range []string{"retained", "foreign", "inside"} {
		p.waitForVolumePhase(name, corev1.VolumeReleased)
	}
	if got := p.deletions(); !slices.Equal(got, []string{"by-hand-deleted"}) {
		t.Errorf("deleted at the driver: %v", got)
	}

	// Who changes his mind in time keeps the data, and the object can go.
	p.createClass("fast")
	p.createClaim("e", "fast")
	p.waitForBound("e")
	p.waitForSettled()
	name := p.getClaim("e").Spec.VolumeName
	p.finalizer(name, true)
	p.patchVolume(name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	p.finalizer(name, false)
	p.deleteClaim("e")
	p.waitForVolumePhase(name, corev1.VolumeReleased)
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, name, metav1.DeleteOptions{}))
	p.waitForNoVolume(name)
	if len(p.driver.Volumes()) != 1 || len(p.deletions()) != 1 {
		t.Errorf("a retained volume was deleted: %v, %v", p.driver.Volumes(), p.deletions())
	}
}

// finalizer waits until a volume object has, or does not have, the provisioner's finalizer.
func (p *plane) finalizer(name string, want bool) {
	p.t.Helper()
	p.eventually(func() string {
		if v := p.getVolume(name); slices.Contains(v.Finalizers, volume.FinalizerProvisioner) != want {
			return fmt.Sprintf("volume %s has %v", name, strings.Join(v.Finalizers, ", "))
		}
		return ""
	})
}

// TestAnEditedReferenceDeletesNothing: a volume whose claimRef has another uid than the claim that names
// the volume is not deleted, bound or released, until the claim is gone or the uid is corrected.
func TestAnEditedReferenceDeletesNothing(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForBound("c")
	v := p.getClaim("c").Spec.VolumeName
	uid := func(uid types.UID) { p.patchVolume(v, fmt.Sprintf(`{"spec":{"claimRef":{"uid":%q}}}`, uid)) }
	uid("edited")
	p.waitForEvent("PersistentVolume", v, volume.ReasonClaimUIDMismatch, "uid edited", string(p.getClaim("c").UID))
	p.waitForClaimPhase("c", corev1.ClaimLost, v)
	p.waitForVolumePhase(v, corev1.VolumeBound)
	// A binder of Kubernetes, or a user, has released it.
	_, err := p.client.CoreV1().PersistentVolumes().Patch(p.ctx, v, types.MergePatchType,
		[]byte(`{"status":{"phase":"Released"}}`), metav1.PatchOptions{}, "status")
	p.must(err)
	p.waitForEvent("PersistentVolume", v, volume.ReasonClaimUIDMismatch, "is kept")
	uid(p.getClaim("c").UID)
	p.waitForBound("c")
	p.waitForVolumePhase(v, corev1.VolumeBound)
	p.agrees()
	if n := p.calls("DeleteVolume"); n > 0 {
		t.Errorf("%d calls of DeleteVolume", n)
	}
	uid("edited")
	p.waitForClaimPhase("c", corev1.ClaimLost, v)
	p.deleteClaim("c")
	p.nothingLeft()
}
