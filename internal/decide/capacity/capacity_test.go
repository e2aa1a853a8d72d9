package capacity

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const driver = "d.example.com"

func class(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func atOnce(c *storagev1.StorageClass)   { c.VolumeBindingMode = nil }
func anothers(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" }

func zone(z string) topology.Segment { return topology.Segment{"zone": z} }

// object is the one that we make for the class "fast".
func object(s topology.Segment, change ...func(*storagev1.CSIStorageCapacity)) *storagev1.CSIStorageCapacity {
	o := Object(Item{Class: class("fast"), Segment: s}, nil, Answer{Available: 10 << 30}).Write
	o.ResourceVersion = "1"
	for _, f := range change {
		f(o)
	}
	return o
}

func of(class string) func(*storagev1.CSIStorageCapacity) {
	return func(o *storagev1.CSIStorageCapacity) { o.StorageClassName = class }
}

func label(key, value string) func(*storagev1.CSIStorageCapacity) {
	return func(o *storagev1.CSIStorageCapacity) { o.Labels[key] = value }
}

// sidecars gives an object the name and the place of one that a sidecar made.
func sidecars(name string, age time.Duration) func(*storagev1.CSIStorageCapacity) {
	return func(o *storagev1.CSIStorageCapacity) {
		o.Namespace, o.Name, o.CreationTimestamp = "csi", "csisc-"+name, metav1.NewTime(time.Unix(1e9, 0).Add(-age))
	}
}

func renamed(o *storagev1.CSIStorageCapacity) { o.Name = o.Name[:len(o.Name)-1] }
func everywhere(o *storagev1.CSIStorageCapacity) {
	o.NodeTopology = nil
}

func byExpression(o *storagev1.CSIStorageCapacity) {
	o.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "zone", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"b"}},
	}}
}

func largest(size string) func(*storagev1.CSIStorageCapacity) {
	return func(o *storagev1.CSIStorageCapacity) { o.MaximumVolumeSize = ptr.To(resource.MustParse(size)) }
}

func free(size string) func(*storagev1.CSIStorageCapacity) {
	return func(o *storagev1.CSIStorageCapacity) { o.Capacity = ptr.To(resource.MustParse(size)) }
}

func blank(o *storagev1.CSIStorageCapacity) { o.Capacity = nil }

// facts are those of a driver that tells its capacity in zone a.
func facts(change ...func(*Facts)) Facts {
	f := Facts{
		Driver: driver, Reached: true, Reports: true,
		Classes: []*storagev1.StorageClass{class("fast")}, Segments: []topology.Segment{zone("a")},
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func unreached(f *Facts)  { f.Reached, f.Reports = false, false }
func silent(f *Facts)     { f.Reports = false }
func immediate(f *Facts)  { f.Immediate = true }
func noClasses(f *Facts)  { f.Classes = nil }
func noSegments(f *Facts) { f.Segments = nil }

func has(all ...*storagev1.CSIStorageCapacity) func(*Facts) {
	return func(f *Facts) { f.Objects = all }
}

func classes(all ...*storagev1.StorageClass) func(*Facts) { return func(f *Facts) { f.Classes = all } }

func TestDrivers(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
	}{
		{"each class is asked about in each segment", facts(classes(class("fast"), class("slow")), func(f *Facts) {
			f.Segments = append(f.Segments, zone("b"))
		})},
		{"without topology there is one place", facts(func(f *Facts) { f.Segments = []topology.Segment{{}} })},
		{"classes of others and classes that do not wait are not asked about", facts(classes(class("now", atOnce),
			class("other", anothers)))},
		{"unless they are wanted", facts(immediate, classes(class("now", atOnce), class("other", anothers)))},
		{"what is there stays", facts(has(object(zone("a"))))},
		{"the class is gone", facts(noClasses, has(object(zone("a"))))},
		{"the class is another driver's now", facts(classes(class("fast", anothers)), has(object(zone("a"))))},
		{"the class does not wait any more", facts(classes(class("fast", atOnce)), has(object(zone("a"))))},
		{"the last node of a segment is gone", facts(has(object(zone("a")), object(zone("b"))))},
		{"the driver is not registered any more", facts(noSegments, has(object(zone("a"))))},
		{"an object without a segment tells nothing", facts(has(object(zone("a"), everywhere),
			object(zone("a"), byExpression)))},
		{"the driver does not report its capacity any more", facts(silent, has(object(zone("a"))))},
		{"a driver that is not reached is not asked, what it told stays", facts(unreached, has(object(zone("a"))))},
		{"but not without class or segment", facts(unreached, noSegments, has(object(zone("a"))))},
		{"a sidecar's object is then left alone", facts(unreached, noClasses, has(object(zone("a"), sidecars("x", 0))))},
		{"a sidecar's object is taken over", facts(has(object(zone("a"), sidecars("x", 0))))},
		{"of a sidecar's objects the oldest one", facts(has(object(zone("a"), sidecars("x", 0)),
			object(zone("a"), sidecars("y", time.Hour)), object(zone("a"), sidecars("z", time.Minute))))},
		{"of equal age the first by name", facts(has(object(zone("a"), sidecars("y", 0)),
			object(zone("a"), sidecars("x", 0))))},
		{"then by where it is", facts(has(
			object(zone("a"), sidecars("x", 0), func(o *storagev1.CSIStorageCapacity) { o.Namespace = "z" }),
			object(zone("a"), sidecars("y", 0))))},
		{"what is left of a class whose claims do not wait, but are wanted", facts(immediate, classes(class("fast", atOnce)),
			has(object(zone("a")), object(zone("b"))))},
		{"what is not reached is not asked, whatever it can", facts(func(f *Facts) { f.Reached = false },
			has(object(zone("a"))))},
		{"an object of our name elsewhere is a sidecar's", facts(unreached, noClasses,
			has(object(zone("a"), func(o *storagev1.CSIStorageCapacity) { o.Namespace = "csi" })))},
		{"and so is one of another name where ours are", facts(unreached, noClasses, has(object(zone("a"), renamed)))},
		{"our own comes before an older one", facts(has(object(zone("a"), sidecars("x", time.Hour)), object(zone("a"))))},
		{"others' objects are not touched", facts(noClasses, noSegments, has(
			object(zone("a"), label(volume.LabelDriver, "other.example.com")),
			object(zone("a"), label(volume.LabelManagedBy, "somebody")),
			object(zone("a"), func(o *storagev1.CSIStorageCapacity) { o.Labels = nil })))},
		{"nor do they count", facts(has(object(zone("a"), label(volume.LabelManagedBy, "somebody")),
			object(zone("a"), renamed)))},
	} {
		p := Driver(c.facts)
		fmt.Fprintf(&out, "# %s\n", c.argues)
		for _, name := range slices.Sorted(maps.Keys(p.Items)) {
			fmt.Fprintf(&out, "ask about %s: %s\n", name, p.Items[name])
		}
		for _, r := range p.Delete {
			fmt.Fprintf(&out, "delete %s/%s\n%s: %s\n", r.Object.Namespace, r.Object.Name, r.Because.Reason, r.Because.Message)
		}
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/drivers.txt", out.String())
}

func TestAnswers(t *testing.T) {
	item := Item{Class: class("fast"), Segment: zone("a")}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		now    *storagev1.CSIStorageCapacity
		answer Answer
	}{
		{"the first answer makes an object", nil, Answer{Available: 10 << 30}},
		{"so does nothing at all: it is an answer, too", nil, Answer{}},
		{"with the largest volume", nil, Answer{Available: 10 << 30, Largest: ptr.To[int64](2 << 30)}},
		{"the same again is not written", object(zone("a")), Answer{Available: 10 << 30}},
		{"nor in other words", object(zone("a"), free("10240Mi")), Answer{Available: 10 << 30}},
		{"less is", object(zone("a")), Answer{Available: 3}},
		{"so is a largest volume", object(zone("a")), Answer{Available: 10 << 30, Largest: ptr.To[int64](0)}},
		{"and that there is none any more", object(zone("a"), largest("1Gi")), Answer{Available: 10 << 30}},
		{"a sidecar's object stays where it is", object(zone("a"), sidecars("x", 0)), Answer{Available: 1 << 30}},
		{"one without a figure gets one", object(zone("a"), blank), Answer{Available: 10 << 30}},
		{"all that there can be", nil, Answer{Available: math.MaxInt64, Largest: ptr.To[int64](math.MaxInt64)}},
		{"less than nothing is refused", object(zone("a")), Answer{Available: -1}},
		{"as a largest volume, too", nil, Answer{Available: 1, Largest: ptr.To[int64](math.MinInt64)}},
		{
			"our name is taken by another driver's object", object(zone("a"), label(volume.LabelDriver, "other.example.com")),
			Answer{},
		},
		{"or by somebody's", object(zone("a"), label(volume.LabelManagedBy, "somebody")), Answer{}},
		{"or by one of another segment", object(zone("b")), Answer{}},
	} {
		plan := Object(item, c.now, c.answer)
		fmt.Fprintf(&out, "# %s\n", c.argues)
		if w := plan.Write; w != nil {
			verb := "create"
			if w.ResourceVersion != "" {
				verb = "update"
			}
			most := "-"
			if w.MaximumVolumeSize != nil {
				most = w.MaximumVolumeSize.String()
			}
			fmt.Fprintf(&out, "%s %s/%s %v: class %s, nodes %v, %s, at most %s\n", verb, w.Namespace, w.Name, w.Labels,
				w.StorageClassName, w.NodeTopology.MatchLabels, w.Capacity, most)
		}
		fmt.Fprintf(&out, "refused=%v %s: %s -> %s\n\n", plan.Refused, plan.Because.Reason, plan.Because.Message,
			plan.Because.Next)
	}
	why := Failed(item, "Internal: no")
	fmt.Fprintf(&out, "# no answer\n%s: %s -> %s\n", why.Reason, why.Message, why.Next)
	golden.Equal(t, "testdata/answers.txt", out.String())
}

func TestRoom(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}}
	wants := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		driver *storagev1.CSIDriver
		known  []*storagev1.CSIStorageCapacity
		size   string
	}{
		{"a driver without an object is not looked at", nil, nil, "1Gi"},
		{"nor one that does not say", &storagev1.CSIDriver{}, nil, "1Gi"},
		{
			"nor one that does not want it",
			&storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(false)}}, nil, "1Gi",
		},
		{"nothing is known", wants, nil, "1Gi"},
		{"just enough", wants, []*storagev1.CSIStorageCapacity{object(zone("a"))}, "10Gi"},
		{"not enough", wants, []*storagev1.CSIStorageCapacity{object(zone("a"))}, "10241Mi"},
		{"the largest volume counts, not the sum", wants, []*storagev1.CSIStorageCapacity{
			object(zone("a"), largest("2Gi")),
		}, "3Gi"},
		{"also when it is larger than the sum", wants, []*storagev1.CSIStorageCapacity{
			object(zone("a"), largest("20Gi")),
		}, "15Gi"},
		{"nothing at all", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), free("0"))}, "1"},
		{"a claim of nothing fits into nothing", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), free("0"))}, "0"},
		{"an object without a figure tells nothing", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), blank)}, "1"},
		{"one of another class neither", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), of("slow"))}, "1Gi"},
		{"nor one of another segment", wants, []*storagev1.CSIStorageCapacity{object(zone("b"))}, "1Gi"},
		{"nor one without nodes", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), everywhere)}, "1Gi"},
		{"an empty selector is all nodes", wants, []*storagev1.CSIStorageCapacity{object(nil)}, "1Gi"},
		{"expressions count", wants, []*storagev1.CSIStorageCapacity{object(zone("b"), byExpression)}, "1Gi"},
		{"also against a node", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), byExpression,
			func(o *storagev1.CSIStorageCapacity) {
				o.NodeTopology.MatchExpressions[0].Values = []string{"a"}
			})}, "1Gi"},
		{"an empty value is not a missing one", wants, []*storagev1.CSIStorageCapacity{
			object(topology.Segment{"rack": ""}),
		}, "1Gi"},
		{"expressions that make no sense select nothing", wants, []*storagev1.CSIStorageCapacity{object(zone("a"),
			byExpression, func(o *storagev1.CSIStorageCapacity) {
				o.NodeTopology.MatchExpressions[0].Operator = "Nonsense"
			})}, "1Gi"},
		{"whoever keeps it", wants, []*storagev1.CSIStorageCapacity{
			object(zone("a"), label(volume.LabelManagedBy, "somebody")),
		}, "1Gi"},
		{"one of several is enough", wants, []*storagev1.CSIStorageCapacity{
			object(zone("a"), free("1Gi")), object(zone("a")), object(zone("a"), free("2Gi")),
		}, "10Gi"},
		{"of several the most is named", wants, []*storagev1.CSIStorageCapacity{
			object(zone("a"), free("1Gi")), object(zone("a")), object(zone("a"), free("2Gi")),
		}, "11Gi"},
		{"sizes are for people", wants, []*storagev1.CSIStorageCapacity{object(zone("a"), largest("105189335040"))}, "98Gi"},
		{"more than can be counted", wants, []*storagev1.CSIStorageCapacity{
			object(zone("a"), largest("9223372036854775807")),
		}, "20E"},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.size)}
		need := Need{Claim: claim, Class: class("fast"), Driver: c.driver, Known: c.known}
		why := need.Refuses(node)
		fmt.Fprintf(&out, "# %s\n%s -> %s: %s\ncause %s %s, takes %d tenths\n\n", c.argues, why.Reason, why.Next, why.Message,
			why.Cause.Reason, why.Object, need.Tenths(node))
	}
	golden.Equal(t, "testdata/room.txt", out.String())
}

// TestRounded: a size has one unit, the one in which people count it.
func TestRounded(t *testing.T) {
	for n, want := range map[int64]string{
		1 << 30: "1Gi", 1<<30 + 1: "1.0Gi", 1<<30 - 1: "1023.9Mi", 1<<40 + 1: "1.0Ti", 98<<30 + 1: "98.0Gi",
		1023<<30 + 1<<29: "1023.5Gi", 1 << 10: "1Ki",
	} {
		// The units are looked at in any order.
		for range 20 {
			if got := rounded(resource.NewQuantity(n, resource.BinarySI)); got != want {
				t.Fatalf("%d: %s, want %s", n, got, want)
			}
		}
	}
}

// TestRoomier: only what makes room is news for those who wait.
func TestRoomier(t *testing.T) {
	small, large := object(zone("a"), free("1Gi")), object(zone("a"), free("2Gi"))
	for _, c := range []struct {
		before, after *storagev1.CSIStorageCapacity
		want          bool
	}{
		{nil, small, true},
		{small, large, true},
		{large, small, false},
		{small, small, false},
		{small, nil, false},
		{object(zone("a"), blank), small, true},
		{small, object(zone("a"), blank), false},
		{nil, object(zone("a"), blank), false},
		{object(zone("a"), largest("1Gi")), object(zone("a"), largest("1Gi"), free("20Gi")), false},
	} {
		if got := Roomier(c.before, c.after); got != c.want {
			t.Errorf("from %+v to %+v: %v", c.before, c.after, got)
		}
	}
}

// TestNames: what differs has names that differ, whatever its parts are called.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, i := range []Item{
		{Class: class("fast"), Segment: nil},
		{Class: class("slow"), Segment: nil},
		{Class: class("fast", anothers), Segment: nil},
		{Class: class("fast"), Segment: zone("a")},
		{Class: class("fast"), Segment: zone("b")},
		{Class: class("fast"), Segment: topology.Segment{"zone": "a", "rack": "1"}},
		{Class: class("fast"), Segment: topology.Segment{`zone" "`: "a"}},
		{Class: class("fast"), Segment: topology.Segment{"zone": `a" "rack"="1`}},
		{Class: class(`fast" "zone"="a`), Segment: nil},
	} {
		name, what := i.Name(), i.Class.Provisioner+" "+i.String()
		if other := seen[name]; other != "" {
			t.Errorf("%s and %s are both %s", what, other, name)
		}
		if seen[name] = what; len(name) != len(volume.CapacityPrefix)+20 || !strings.HasPrefix(name, volume.CapacityPrefix) {
			t.Errorf("%s is %q", what, name)
		}
	}
	none, empty := Item{Class: class("fast")}, Item{Class: class("fast"), Segment: topology.Segment{}}
	if a, b := none.Name(), empty.Name(); a != b {
		t.Errorf("the empty segment is %s and %s", a, b)
	}
}
