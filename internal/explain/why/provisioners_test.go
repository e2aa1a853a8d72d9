package why_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// TestProvisionersThatAreNoDrivers: a provisioner may be none of a CSI driver, and
// then it registers nowhere.
func TestProvisionersThatAreNoDrivers(t *testing.T) {
	whytest.Equal(t, "provisioners.txt", whytest.Written(t, provisionerRows(), func(s *scene) {
		s.Unbound()
		s.Class.Provisioner, s.All.Drivers = "example.com/nfs", nil
		s.All.Now = whytest.At(10).Time
		s.Lease("kube-system", "apiserver-x", "x", 3600, 0)
	}))
}

func provisionerRows() []row {
	made := func(s *scene, by string) {
		v := s.Volume.DeepCopy()
		v.Name, v.Spec.CSI, v.Spec.ClaimRef, v.Annotations = "v0", nil, nil, map[string]string{volume.AnnProvisionedBy: by}
		s.All.Volumes = []*corev1.PersistentVolume{v}
	}
	return []row{
		{"nothing is known of it", "pvc/data", func(*scene) {}},
		{"it has made a volume", "pvc/data", func(s *scene) { made(s, "example.com/nfs") }},
		{"another one has", "pvc/data", func(s *scene) { made(s, "example.com/smb") }},
		{"a volume of a driver is no proof", "pvc/data", func(s *scene) {
			made(s, "example.com/nfs")
			s.All.Volumes[0].Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d"}
		}},
		{"it renews a lease", "pvc/data", func(s *scene) { s.Lease("nfs", "example.com-nfs", "nfs-0", 15, time.Second) }},
		{"it renews none any more", "pvc/data", func(s *scene) {
			s.Lease("nfs", "example.com-nfs", "nfs-0", 15, time.Minute)
		}},
		{"a driver has to register as well", "pvc/data", func(s *scene) {
			s.All.Drivers = []*storagev1.CSIDriver{s.Driver}
			s.Driver.Name, s.Class.Provisioner = "example.com-nfs", "example.com-nfs"
			s.Lease("nfs", "example.com-nfs", "nfs-0", 15, time.Second)
		}},
	}
}

// TestPopulators: a claim whose data come from an object of another kind waits for a populator.
func TestPopulators(t *testing.T) {
	whytest.Equal(t, "populators.txt", whytest.Written(t, []row{
		{"none has begun", "pvc/data", func(*scene) {}},
		{"one has, and has not reported anything", "pvc/data", func(s *scene) {
			s.Claim.Finalizers = []string{"populators.example.com" + volume.SuffixPopulating}
		}},
		{"the source is missing", "pvc/data", func(s *scene) {
			s.Warn("uid-data", "PopulatorDataSourceNotFound", "Data source ns/web not found")
		}},
	}, func(s *scene) {
		s.Unbound()
		s.Claim.Spec.DataSource = &corev1.TypedLocalObjectReference{
			APIGroup: ptr.To("populators.example.com"), Kind: "Web", Name: "page",
		}
	}))
}
