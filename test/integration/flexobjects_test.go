package integration

import (
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// TestFlexDriverObjectOfAnother: a CSIDriver that another program made is not deleted when it contradicts
// the driver. The Node says what is wrong, and when the object is deleted, the right one is created. A
// CSIDriver of volplane is replaced when the driver's attach capability changes.
func TestFlexDriverObjectOfAnother(t *testing.T) {
	f := newFlexHost(t)
	const name = "lofs.example.com"
	drivers := f.client.StorageV1().CSIDrivers()
	foreign, err := drivers.Create(f.ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}, metav1.CreateOptions{})
	f.must(err)
	says := func(want string) {
		t.Helper()
		f.eventually(func() string {
			n, err := f.client.CoreV1().Nodes().Get(f.ctx, "n1", metav1.GetOptions{})
			f.must(err)
			if got := n.Annotations[volume.AnnDriverNotes]; !strings.Contains(got, want) {
				return "the node says " + got
			}
			return ""
		})
	}
	attaches := func(want bool) {
		t.Helper()
		f.eventually(func() string {
			d, err := drivers.Get(f.ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return err.Error()
			}
			f.must(err)
			if *d.Spec.AttachRequired != want || d.Labels[volume.LabelMadeBy] != volume.Program {
				return "the CSIDriver is " + d.String()
			}
			return ""
		})
	}
	f.install("lofs")
	says("which was not created by volplane")
	has, err := drivers.Get(f.ctx, name, metav1.GetOptions{})
	f.must(err)
	if has.UID != foreign.UID {
		t.Error("the CSIDriver of somebody else was replaced")
	}
	f.must(drivers.Delete(f.ctx, name, metav1.DeleteOptions{}))
	attaches(true)
	says(`"` + name + `":""`)
	f.write("lofs", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n")
	attaches(false)
	says(`"` + name + `":""`)
}
