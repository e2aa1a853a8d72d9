package modify

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// claim is a claim of class silver that asks for a class.
func claim(wants string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "u1"}}
	c.Status.Phase, c.Status.CurrentVolumeAttributesClassName = corev1.ClaimBound, ptr.To("silver")
	if wants != "" {
		c.Spec.VolumeAttributesClassName = &wants
	}
	return c
}

// as returns a claim with what it says of a change to a class.
func as(c *corev1.PersistentVolumeClaim, state corev1.PersistentVolumeClaimModifyVolumeStatus, class string,
) *corev1.PersistentVolumeClaim {
	c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{Status: state, TargetVolumeAttributesClassName: class}
	return c
}

// of returns the facts of a claim whose driver is here, and has all classes.
func of(c *corev1.PersistentVolumeClaim, change ...func(*Facts)) Facts {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	v.Spec.ClaimRef, v.Spec.VolumeAttributesClassName = &corev1.ObjectReference{UID: "u1"}, ptr.To("silver")
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d.example.com"}
	f := Facts{Claim: c, Volume: v, Reachable: true, Modifies: true}
	for _, one := range change {
		one(&f)
	}
	if f.Class == nil {
		f.Class = &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: f.Target()}, DriverName: "d.example.com",
		}
	}
	if f.Class.Name == "none" {
		f.Class = nil
	}
	return f
}

func refused(f *Facts) { f.Refused = true }
func due(f *Facts)     { f.Due = true }
func absent(f *Facts) {
	f.Class = &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
}

// TestClaims: the next step of a claim.
func TestClaims(t *testing.T) {
	const (
		pending    = corev1.PersistentVolumeClaimModifyVolumePending
		begun      = corev1.PersistentVolumeClaimModifyVolumeInProgress
		infeasible = corev1.PersistentVolumeClaimModifyVolumeInfeasible
	)
	going := claim("gold")
	going.DeletionTimestamp = &metav1.Time{}
	steps := []string{"nothing", "wait", "begin", "modify", "cancel", "refuse"}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
	}{
		{"it has what it asks for", of(claim("silver"))},
		{"it asks for nothing, and has nothing", of(func() *corev1.PersistentVolumeClaim {
			c := claim("")
			c.Status.CurrentVolumeAttributesClassName = nil
			return c
		}())},
		{"it asks for another class", of(claim("gold"))},
		{"it is being deleted", of(going)},
		{"nobody calls the driver here", of(claim("gold"), func(f *Facts) { f.Reachable = false })},
		{"the driver cannot", of(claim("gold"), func(f *Facts) { f.Modifies = false })},
		{"the class is another driver's", of(claim("gold"), func(f *Facts) {
			f.Class = &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "x"}
		})},
		{"it is another driver's since the change has begun", of(as(claim("gold"), begun, "gold"), func(f *Facts) {
			f.Class = &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "x"}
		})},
		{"its volume is not there", of(claim("gold"), func(f *Facts) { f.Volume = nil })},
		{"its volume is another claim's", of(claim("gold"), func(f *Facts) { f.Volume.Spec.ClaimRef.UID = "u2" })},
		{"there is no such class", of(claim("gold"), absent)},
		{"it waits for the class", of(as(claim("gold"), pending, ""), absent)},
		{"the class has come", of(as(claim("gold"), pending, ""))},
		{"it wanted a class that there was not, and wants its own again", of(as(claim("silver"), pending, ""))},
		{"the change has begun", of(as(claim("gold"), begun, "gold"))},
		{"the change has begun, and the class has gone", of(as(claim("gold"), begun, "gold"), absent)},
		{"the driver has refused, and the class has gone", of(as(claim("gold"), begun, "gold"), refused, absent)},
		{"it gave up what the driver has refused, and the class has gone", of(as(claim(""), begun, "gold"), refused, absent)},
		{"it changed its mind, and the driver may be at work", of(as(claim("silver"), begun, "gold"))},
		{"it changed its mind, and the driver has refused", of(as(claim("silver"), begun, "gold"), refused)},
		{"then there is no such class", of(as(claim("iron"), begun, "gold"), refused, absent)},
		{"the driver is asked again for what it has refused", of(as(claim("gold"), begun, "gold"), refused)},
		{"it gave up, and the driver may be at work", of(as(claim(""), begun, "gold"))},
		{"it gave up, and the driver has refused: it may be half way", of(as(claim(""), begun, "gold"), refused)},
		{"it gave up what can never be", of(Begun(as(claim(""), infeasible, "gold"), "gold", metav1.Time{}), func(f *Facts) {
			f.Claim.Status.ModifyVolumeStatus.Status = infeasible
		})},
		{"of that nothing is left to do", of(as(claim(""), infeasible, "gold"))},
		{"it can never be", of(as(claim("gold"), infeasible, "gold"))},
		{"it is tried again after a while", of(as(claim("gold"), infeasible, "gold"), due)},
		{"another class may do", of(as(claim("iron"), infeasible, "gold"))},
		{"there is no such class either", of(as(claim("iron"), infeasible, "gold"), absent)},
	} {
		p := Claim(c.facts)
		fmt.Fprintf(&out, "# %s\n%s %q: %s: %s", c.argues, steps[p.Step], c.facts.Target(), p.Because.Reason,
			p.Because.Message)
		if next := p.Because.Next; !next.IsZero() {
			out.WriteString(" -> " + next.String())
		}
		if p.Event {
			out.WriteString(" (told)")
		}
		out.WriteString("\n\n")
	}
	golden.Equal(t, "testdata/claims.txt", out.String())
}

// TestAnswers: what follows each answer of a driver.
func TestAnswers(t *testing.T) {
	got := csitest.EveryAnswer(func(a volume.Answer) string {
		f := of(Begun(claim("gold"), "gold", metav1.Time{}))
		v := After(f, a, metav1.Unix(7, 0))
		if v.Claim == nil || v.Warn == (a.Outcome == volume.Done) || (v.Volume == nil) != v.Warn {
			t.Errorf("%+v: %+v", a, v)
		}
		if f.Claim = v.Claim; v.Warn && After(f, a, metav1.Unix(8, 0)).Claim != nil {
			t.Error("what the claim says already is written again")
		}
		words := "done"
		if s := v.Claim.Status.ModifyVolumeStatus; s != nil {
			words = string(s.Status)
		}
		return fmt.Sprintf("%s, refused %v, repeat %v", words, v.Refused, v.Repeat)
	})
	golden.Equal(t, "testdata/answers.txt", got+"\n")
}
