package integration

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
