package provisioner

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/csi/csitest"
)

// cutNames gives the volumes of claims c and d, whose UIDs are u-c and u-d, the same name.
func cutNames(s *setup) { s.Choices.NameLength = 1 }

func asksByCutName() *csipb.CreateVolumeRequest {
	r := asksFor("c")
	r.Name = "pvc-u"
	return r
}

func deletesByCutName() *csipb.DeleteVolumeRequest {
	return &csipb.DeleteVolumeRequest{VolumeId: "id-pvc-u"}
}

func volumeByCutName(claim string) *corev1.PersistentVolume {
	v := plainVolume(claim)
	v.Name, v.Spec.CSI.VolumeHandle = "pvc-u", "id-pvc-u"
	v.Spec.CSI.VolumeAttributes = map[string]string{"name": "pvc-u"}
	return v
}

// TestCutNamesOfSavedVolumes: the driver would return the volume of the other claim.
func TestCutNamesOfSavedVolumes(t *testing.T) {
	b := newBench(t, cutNames, claim("c"), claim("d"), class())
	b.works(kindClaim, "u-c")
	b.errs(kindClaim, "u-d", "volume object pvc-u exists, and is not one of this claim")
	b.called(asksByCutName())
	b.volumesAre(volumeByCutName("c"))

	b.restart()
	b.errs(kindClaim, "u-d", "volume object pvc-u exists, and is not one of this claim")
	b.called(asksByCutName())
}

// TestCutNamesOfVolumesThatAreBeingMade: what is undone for one claim must not be the other's, whoever comes first
// after a crash.
func TestCutNamesOfVolumesThatAreBeingMade(t *testing.T) {
	b := newBench(t, cutNames, claim("c"), claim("d"), class())
	b.fails("CreateVolume", no(codes.Unavailable), true)
	b.errs(kindClaim, "u-c", "Unavailable")
	held := "another claim's volume is being made with the same name: pvc-u"
	b.errs(kindClaim, "u-d", held)
	b.restart()
	b.errs(kindClaim, "u-d", held)
	b.open("u-c")
	b.called(asksByCutName())

	b.fails("CreateVolume", nil, false)
	b.deleteClaim("c")
	b.restart()
	b.errs(kindClaim, "u-d", held)
	b.works(kindClaim, "u-c")
	b.works(kindClaim, "u-d")
	b.called(asksByCutName(), asksByCutName(), deletesByCutName(), asksByCutName())
	b.volumesAre(volumeByCutName("d"))
}

// TestUndoingACutName: an object with the name may be another volume's. Only the handle says whether it is.
func TestUndoingACutName(t *testing.T) {
	for _, c := range []struct {
		argues, handle string
		calls          bool
	}{
		{"it is the same volume", "id-pvc-u", false}, {"it is another volume", "other", true},
	} {
		t.Run(c.argues, func(t *testing.T) {
			b := newBench(t, cutNames, claim("c"), class())
			b.fails("CreateVolume", no(codes.Unavailable), true)
			b.errs(kindClaim, "u-c", "Unavailable")
			b.fails("CreateVolume", nil, false)
			b.deleteClaim("c")
			other := volumeByCutName("d")
			other.Spec.CSI.VolumeHandle = c.handle
			b.stop()
			if err := b.api.Tracker().Add(other); err != nil {
				t.Fatal(err)
			}
			b.start()
			b.works(kindClaim, "u-c")
			b.sweeps()
			b.open()
			if c.calls {
				b.called(asksByCutName(), asksByCutName(), deletesByCutName())
			} else {
				b.called(asksByCutName(), asksByCutName())
			}
			b.volumesAre(other)
		})
	}
}

// TestWhatTheUserHasChosen reaches the driver and the object.
func TestWhatTheUserHasChosen(t *testing.T) {
	b := newBench(t, func(s *setup) {
		s.Choices.NamePrefix, s.Choices.DefaultFSType, s.Identity = "team", "ext4", "1-2-d.example"
	}, claim("c"), class())
	b.works(kindClaim, "u-c")
	r, v := asksFor("c"), plainVolume("c")
	r.Name, r.VolumeCapabilities = "team-u-c", []*csipb.VolumeCapability{capability("ext4")}
	b.called(r)
	v.Name, v.Spec.CSI.VolumeHandle, v.Spec.CSI.FSType = "team-u-c", "id-team-u-c", "ext4"
	v.Spec.CSI.VolumeAttributes = map[string]string{
		"name": "team-u-c", "storage.kubernetes.io/csiProvisionerIdentity": "1-2-d.example",
	}
	for _, field := range []string{"name", "namespace"} {
		v.Annotations["volume.kubernetes.io/provisioner-deletion-secret-"+field] = ""
	}
	b.volumesAre(v)
}

// TestOtherOptionsAfterARestart: a claim gets the volume that was begun, and no second one.
func TestOtherOptionsAfterARestart(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.works(kindClaim, "u-c")
	b.setup.Choices.NamePrefix = "team"
	b.restart()
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"))
	b.volumesAre(plainVolume("c"))

	b = newBench(t, nil, claim("c"), class())
	b.fails("CreateVolume", no(codes.Unavailable), true)
	b.errs(kindClaim, "u-c", "Unavailable")
	b.fails("CreateVolume", nil, false)
	b.setup.Choices.NamePrefix = "team"
	b.restart()
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"), asksFor("c"))
	b.volumesAre(plainVolume("c"))
}

// TestBlockDrivers: only a driver that attaches, stages and expands is certain to have block devices.
func TestBlockDrivers(t *testing.T) {
	all := csitest.Start(t, driverConfig()).Dial()
	for n, want := range []bool{true, false, false, false} {
		d := *all
		d.Controller.PublishUnpublish, d.Node.StageUnstage, d.Node.Expand = n != 1, n != 2, n != 3
		if got := isBlockDriver(&d); got != want {
			t.Errorf("without %d: %v", n, got)
		}
	}
}
