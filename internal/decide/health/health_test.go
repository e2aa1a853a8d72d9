package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/golden"
)

// many returns reports of different problems.
func many(n int) []Report {
	var out []Report
	for i := range n {
		out = append(out, Report{Status: "DEGRADED", Reason: fmt.Sprintf("Path%02d", i)})
	}
	return append(out, Report{Status: "DATA_LOSS", Reason: "Z"})
}

// situation is what a driver tells.
type situation struct {
	argues  string
	reports []Report
}

func situations() []situation {
	return []situation{
		{"nothing is wrong", nil},
		{"one problem", []Report{{Status: "DEGRADED", Reason: "OnePath", Message: "one path is left"}}},
		{"the worst comes first", []Report{
			{Status: "DEGRADED", Reason: "A"}, {Status: "INACCESSIBLE", Reason: "B"}, {Status: "DATA_LOSS", Reason: "C"},
		}},
		{"a status that is not known, beside one that is", []Report{
			{Status: "4", Reason: "Multipath"}, {Status: "DEGRADED", Reason: "Multipath"},
		}},
		{"no status", []Report{{Status: "UNKNOWN_VOLUME_HEALTH_TYPE", Reason: "A"}, {Reason: "A"}}},
		{"the same twice", []Report{
			{Status: "DEGRADED", Reason: "A", Message: "two"},
			{Status: "DEGRADED", Reason: "A", Message: "one"},
			{Status: "DEGRADED", Reason: "A", Message: "two"},
			{Status: "DEGRADED", Reason: "A"},
		}},
		{"a reason for people", []Report{
			{Status: "DEGRADED", Reason: "one path is left", Message: "sdb has gone"},
			{Status: "DEGRADED", Reason: "no quorum"},
		}},
		{"no reason", []Report{{Status: "DEGRADED", Message: "slow"}}},
		{"a reason that begins badly, and words with room between them", []Report{
			{Status: "DEGRADED", Reason: "9Lives", Message: "a  b"},
		}},
		{"a reason that ends badly", []Report{{Status: "DEGRADED", Reason: "Slow:"}, {Status: "DEGRADED", Reason: "Slow\n"}}},
		{"a message that would steer a terminal", []Report{
			{Status: "DEGRADED", Reason: "A", Message: "\x1b[2J a\r\nb\u202ec\xff\u0085"},
		}},
		{"more than the API takes", many(20)},
		{"of a storage", []Report{
			{Status: "STORAGE_DEGRADED", Reason: "Slow", AccessMode: corev1.ReadWriteMany},
			{Status: "STORAGE_DEGRADED", Reason: "Slow", VolumeMode: corev1.PersistentVolumeBlock, Message: "at night"},
			{Status: "STORAGE_UNREACHABLE", Reason: "Down"},
			{Status: "DEGRADED", Reason: "NoStorage"},
		}},
	}
}

// TestReports: what the API says of what drivers tell, in whatever order they tell it.
func TestReports(t *testing.T) {
	say := func(all []Report) string {
		var out strings.Builder
		for _, c := range OfVolume(all) {
			fmt.Fprintf(&out, "volume %s %s %q\n", c.Status, c.Reason, c.Message)
		}
		for _, c := range OfStorage(all) {
			fmt.Fprintf(&out, "storage %s %s %q %s%s\n", c.Status, c.Reason, c.Message, ptr.Deref(c.AccessMode, ""),
				ptr.Deref(c.VolumeMode, ""))
		}
		return cmp.Or(out.String(), "nothing\n")
	}
	var out strings.Builder
	for _, s := range situations() {
		said := say(s.reports)
		fmt.Fprintf(&out, "# %s\n%s\n", s.argues, said)
		reversed := slices.Clone(s.reports)
		slices.Reverse(reversed)
		if other := say(reversed); other != said {
			t.Errorf("%s: in another order\n%s", s.argues, other)
		}
	}
	golden.Equal(t, "testdata/reports.txt", out.String())
}

// TestBounds: whatever a driver tells, the API takes it.
func TestBounds(t *testing.T) {
	long := strings.Repeat("ü", 5000)
	reports := many(100)
	for i := range 20 {
		reports = append(reports, Report{Status: "INACCESSIBLE", Reason: "Same", Message: fmt.Sprint(i, long)},
			Report{Status: "INACCESSIBLE", Reason: strings.Repeat("A", 257), Message: "a" + long},
			Report{Status: "INACCESSIBLE", Reason: strings.Repeat("A", 256)})
	}
	all := OfVolume(reports)
	if len(all) != 16 {
		t.Errorf("%d conditions", len(all))
	}
	seen := map[string]bool{}
	for _, c := range all {
		if validation.IsValidConditionReason(c.Reason) != nil || len(c.Reason) > 256 {
			t.Errorf("reason %q", c.Reason)
		}
		if len(c.Message) > 1024 || !utf8.ValidString(c.Message) {
			t.Errorf("message of %d bytes: %q", len(c.Message), c.Message)
		}
		if key := string(c.Status) + c.Reason; seen[key] {
			t.Errorf("%s is told twice", key)
		} else {
			seen[key] = true
		}
	}
	if !seen["Inaccessible"+strings.Repeat("A", 256)] || !seen["InaccessibleUnspecified"] || !seen["DataLossZ"] {
		t.Errorf("what is worst is missing: %v", all)
	}
}

// ill is a volume's condition of a reason.
func ill(reason, message string) []corev1.VolumeHealthCondition {
	return []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDegraded, Reason: reason, Message: message}}
}

// TestOfPod: what a Pod says of its volumes.
func TestOfPod(t *testing.T) {
	before, now := metav1.Unix(1, 0), metav1.Unix(2, 0)
	was := []corev1.PodVolumeHealth{
		{Name: "other", LastTransitionTime: before}, {Name: "v", HealthConditions: ill("A", ""), LastTransitionTime: before},
	}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		before []corev1.PodVolumeHealth
		seen   []Seen
	}{
		{"it was always well", nil, []Seen{{"v", true, nil}}},
		{"it is ill", nil, []Seen{{"v", true, ill("A", "a")}}},
		{"it is still ill", was, []Seen{{"v", true, ill("A", "in other words")}}},
		{"it is ill in another way", was, []Seen{{"v", true, ill("B", "")}}},
		{"it is ill in two ways", was, []Seen{{"v", true, append(ill("B", ""), ill("A", "")...)}}},
		{"it is healthy again", was, []Seen{{"v", true, nil}}},
		{"it is still well", was[:1], []Seen{{"other", true, nil}}},
		{"it is not known how it is", was, []Seen{{"v", false, nil}}},
		{"of several, one is ill", was, []Seen{{"other", true, ill("A", "")}, {"v", true, ill("A", "")}, {"w", true, nil}}},
	} {
		after, changed := OfPod(c.before, c.seen, now)
		fmt.Fprintf(&out, "# %s\n%s\n", c.argues, cmp.Or(golden.Change(t, c.before, after), "  nothing\n"))
		if changed != (golden.Change(t, c.before, after) != "") {
			t.Errorf("%s: changed: %v", c.argues, changed)
		}
	}
	golden.Equal(t, "testdata/pods.txt", out.String())
}

// TestOfNode: what a CSINode says of the storage of its drivers.
func TestOfNode(t *testing.T) {
	before, now := metav1.Unix(1, 0), metav1.Unix(2, 0)
	storage := func(at metav1.Time, reasons ...string) []storagev1.StorageHealthCondition {
		var out []storagev1.StorageHealthCondition
		for _, r := range reasons {
			out = append(out, storagev1.StorageHealthCondition{
				Status: storagev1.StorageDegraded, Reason: r, LastTransitionTime: at,
			})
		}
		return out
	}
	block := storage(metav1.Time{}, "A")
	block[0].VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	was := []storagev1.StorageHealth{{Name: "d", HealthConditions: storage(before, "A")}, {Name: "other"}}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		before []storagev1.StorageHealth
		now    []storagev1.StorageHealthCondition
	}{
		{"it was always well", was[1:], nil},
		{"it is ill", was[1:], storage(metav1.Time{}, "A")},
		{"it is still ill", was, storage(metav1.Time{}, "A")},
		{"another problem comes", was, storage(metav1.Time{}, "B", "A")},
		{"it concerns block devices only", was, block},
		{"it is healthy again", was, nil},
		{"an entry without problems", []storagev1.StorageHealth{{Name: "d"}}, nil},
	} {
		after, changed := OfNode(c.before, "d", c.now, now)
		fmt.Fprintf(&out, "# %s\n%s\n", c.argues, cmp.Or(golden.Change(t, c.before, after), "  nothing\n"))
		if changed != (golden.Change(t, c.before, after) != "") {
			t.Errorf("%s: changed: %v", c.argues, changed)
		}
	}
	golden.Equal(t, "testdata/nodes.txt", out.String())
}
