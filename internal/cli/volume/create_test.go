package volume

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// line writes what matters of a claim in one line.
func line(c *corev1.PersistentVolumeClaim) string {
	text := fmt.Sprint(c.Name, " ", c.Spec.Resources.Requests.Storage(), " ", c.Spec.AccessModes)
	if c.Spec.StorageClassName != nil {
		text += " class " + *c.Spec.StorageClassName
	}
	if c.Spec.VolumeMode != nil {
		text += " " + string(*c.Spec.VolumeMode)
	}
	if c.Spec.DataSource != nil {
		text += " from " + c.Spec.DataSource.Kind + " " + c.Spec.DataSource.Name
	}
	return text
}

// TestClaimOfAWish: what is requested is in the claim, and the rest is as in the claim that the data come from.
func TestClaimOfAWish(t *testing.T) {
	like := &corev1.PersistentVolumeClaim{}
	like.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	like.Spec.StorageClassName = ptr.To("shared")
	like.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	like.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")}
	grown := like.DeepCopy()
	grown.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Gi")}
	fiveGi := resource.MustParse("5Gi")
	for name, c := range map[string]struct {
		claimRequest
		origin
		want string
	}{
		"a size alone": {claimRequest{size: "10Gi"}, origin{}, "a 10Gi [ReadWriteOnce]"},
		"all": {
			claimRequest{size: "1Gi", class: "x", access: "rwx", block: true},
			origin{},
			"a 1Gi [ReadWriteMany] class x Block",
		},
		"a long access mode": {claimRequest{size: "1Gi", access: "ReadOnlyMany"}, origin{}, "a 1Gi [ReadOnlyMany]"},
		"a copy of a claim": {
			claimRequest{claim: "c"},
			origin{claim: grown},
			"a 4Gi [ReadWriteMany] class shared Filesystem from PersistentVolumeClaim c",
		},
		"a copy of a claim that is not bound": {
			claimRequest{claim: "c", access: "RWOP"},
			origin{claim: like},
			"a 3Gi [ReadWriteOncePod] class shared Filesystem from PersistentVolumeClaim c",
		},
		"of a snapshot whose claim is there": {
			claimRequest{snapshot: "s"},
			origin{fiveGi, like},
			"a 5Gi [ReadWriteMany] class shared Filesystem from VolumeSnapshot s",
		},
		"of a snapshot whose claim is gone": {
			claimRequest{snapshot: "s", size: "6Gi", class: "x"},
			origin{size: fiveGi},
			"a 6Gi [ReadWriteOnce] class x from VolumeSnapshot s",
		},
		"no size":           {claimRequest{}, origin{}, "set its size"},
		"no number":         {claimRequest{size: "big"}, origin{}, "not a size"},
		"nothing":           {claimRequest{size: "0"}, origin{}, "not a size"},
		"less than nothing": {claimRequest{size: "-1Gi"}, origin{}, "not a size"},
		"no access mode":    {claimRequest{size: "1Gi", access: "rw"}, origin{}, "use RWO, RWX, ROX or RWOP"},
	} {
		t.Run(name, func(t *testing.T) {
			claim, err := c.of("a", c.origin)
			got := fmt.Sprint(err)
			if err == nil {
				got = line(claim)
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// TestCreateAgain: a claim that meets the request may be created again; for one that does not, the error says what
// differs.
func TestCreateAgain(t *testing.T) {
	has, err := claimRequest{size: "2Gi", class: "x", claim: "c"}.of("a", origin{})
	if err != nil {
		t.Fatal(err)
	}
	for want, w := range map[string]claimRequest{
		"":                                {size: "1Gi", class: "x", access: "RWO", claim: "c"},
		"volplane resize a 3Gi":           {size: "3Gi"},
		`of class "x"`:                    {class: "y"},
		"access modes [ReadWriteOnce]":    {access: "RWX"},
		"not a block device":              {block: true},
		"data of volumesnapshot s":        {snapshot: "s"},
		"data of persistentvolumeclaim d": {claim: "d"},
		"not a size":                      {size: "x"},
		"use RWO":                         {access: "x"},
	} {
		if err := w.mismatch(has); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", w, err, want)
		}
	}
}

// TestMayResize: a claim without a volume is not resized, and none becomes smaller; the same size may be requested
// again.
func TestMayResize(t *testing.T) {
	c := &corev1.PersistentVolumeClaim{}
	c.Name = "a"
	refused := func(size string) string { return fmt.Sprint(mayResize(c, resource.MustParse(size))) }
	if got := refused("2Gi"); !strings.Contains(got, "no volume yet") {
		t.Error(got)
	}
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	if got := refused("1Gi"); !strings.Contains(got, "cannot shrink") {
		t.Error(got)
	}
	if same, more := refused("2Gi"), refused("3Gi"); same != "<nil>" || more != "<nil>" {
		t.Error(same, more)
	}
}
