package driverstatus_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func TestAbsent(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct{ argues, csi, told, dir string }{
		{"no bridge runs there", "lofs.example.com", "", ""},
		{"what is said is not understood", "lofs.example.com", `["lofs.example.com"]`, ""},
		{"it is not installed", "lofs.example.com", `{}`, "/plugins"},
		{"nor is it known where", "lofs.example.com", `{"other.example.com":""}`, ""},
		{"a driver without a vendor", "lofs", `{}`, "/plugins"},
		{
			"it is broken", "lofs.example.com",
			`{"lofs.example.com":"driver example.com/lofs does not initialise: exit code 3"}`, "/plugins",
		},
		{"it is there", "lofs.example.com", `{"lofs.example.com":""}`, "/plugins"},
		{"no FlexVolume driver has such a name", "LOFS", `{}`, "/plugins"},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{}}}
		for k, v := range map[string]string{volume.AnnDriverNotes: c.told, volume.AnnDriverDir: c.dir} {
			if v != "" {
				n.Annotations[k] = v
			}
		}
		b := driverstatus.Absent(c.csi, n)
		fmt.Fprintf(&out, "# %s\n%s told=%s dir=%s\n----\n%s: %s -> %s\nn1: %s\n\n", c.argues, c.csi, c.told, c.dir, b.Reason,
			b.Message, b.Next, driverstatus.Lack(c.csi, n))
	}
	golden.Equal(t, "testdata/absent.txt", out.String())
	if b := driverstatus.Absent("lofs.example.com", nil); b.Reason != "" || driverstatus.Of(nil) != nil {
		t.Errorf("a node that is gone is told of: %v", b)
	}
}

// TestDriver: a driver of a host has the name that its users know, as long as they said that it is one.
func TestDriver(t *testing.T) {
	var out strings.Builder
	for _, d := range []driverstatus.Driver{
		{CSI: "lofs.example.com", Hosted: true},
		{CSI: "lofs.example.com"},
		{CSI: "lofs", Hosted: true},
		{CSI: "LOFS", Hosted: true},
	} {
		fmt.Fprintf(&out, "# %s hosted=%v\nname %s, subject %s, in a sentence %s, next %s\n", d.CSI, d.Hosted, d.Name(),
			d.Subject(), d, d.Next())
		fmt.Fprintf(&out, "no node%s\n\n", d.Elsewhere())
	}
	golden.Equal(t, "testdata/driver.txt", out.String())
}

// TestHosted: whose driver it is says the source that a user wrote, and the object of a Pod's volume says it, too.
func TestHosted(t *testing.T) {
	for hosted, v := range map[bool]*corev1.Volume{
		true:  {VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/lofs"}}},
		false: {VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "lofs.example.com"}}},
	} {
		pv := &corev1.PersistentVolume{}
		driverstatus.Inherit(pv, v)
		if driverstatus.HostedInline(v) != hosted || driverstatus.Hosted(pv) != hosted {
			t.Errorf("hosted %v: Pod %v, object %v", hosted, driverstatus.HostedInline(v), driverstatus.Hosted(pv))
		}
		if hosted && pv.Spec.FlexVolume.Driver != "example.com/lofs" {
			t.Errorf("the object names driver %q", pv.Spec.FlexVolume.Driver)
		}
	}
	if driverstatus.Hosted(nil) {
		t.Error("no volume has a driver")
	}
}

// TestOf: what is wrong with the drivers of a node: a program that does not run is why its driver was not registered,
// and a driver of a host that was refused is not healthy.
func TestOf(t *testing.T) {
	is := func(notes ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(notes); i += 2 {
			out[notes[i]] = notes[i+1]
		}
		return out
	}
	for _, c := range []struct {
		argues, hosted, refused, notRun string
		want                            map[string]string
	}{
		{argues: "nothing is known"},
		{argues: "a driver of a host", hosted: `{"a":""}`, want: is("a", "")},
		{argues: "one that was refused", refused: `{"a":"no"}`, want: is("a", "no")},
		{argues: "one whose program does not run", notRun: `{"a":"exit code 1"}`, want: is("a", "exit code 1")},
		{
			argues: "a refused one whose program does not run", refused: `{"a":"no","b":"no"}`, notRun: `{"a":"exit code 1"}`,
			want: is("a", "exit code 1", "b", "no"),
		},
		{
			argues: "one of a host that was refused", hosted: `{"a":"","b":""}`, refused: `{"a":"no"}`,
			want: is("a", "no", "b", ""),
		},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
			volume.AnnDriverNotes: c.hosted, volume.AnnRefused: c.refused, volume.AnnNotRun: c.notRun,
		}}}
		got := driverstatus.Of(n)
		if !maps.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.argues, got)
		}
		b, wrong := driverstatus.Absent("a", n), got["a"]
		if wrong == "" {
			continue
		}
		want := volume.Say(volume.ReasonRegistrationRefused, volume.Administrator("n1"),
			"driver a cannot be used on node n1: "+wrong)
		if b != want || driverstatus.Install(b) != nil {
			t.Errorf("%s: %+v", c.argues, b)
		}
	}
}
