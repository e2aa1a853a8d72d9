package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/state"
	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// named makes the scene one of a namespace that is read too.
func (s *scene) named(change func(*corev1.Namespace)) {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	change(n)
	s.all.Namespaces = []*corev1.Namespace{n}
}

// leaving has the namespace be deleted, of which a condition tells.
func (s *scene) leaving(kind corev1.NamespaceConditionType, message string) {
	s.named(func(n *corev1.Namespace) {
		n.DeletionTimestamp = now()
		n.Status.Conditions = []corev1.NamespaceCondition{
			{Type: kind, Status: corev1.ConditionTrue, Message: message},
			{
				Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionFalse,
				Message: "All content-preserving finalizers finished",
			},
		}
	})
}

// register adds drivers to n2.
func (s *scene) register(names ...string) {
	for _, n := range names {
		s.all.CSINodes[1].Spec.Drivers = append(s.all.CSINodes[1].Spec.Drivers, storagev1.CSINodeDriver{Name: n})
	}
}

// snapshot makes the scene one of a snapshot of the claim.
func (s *scene) snapshot(change func(*state.Snapshot)) {
	snap := state.Snapshot{Namespace: "ns", Name: "s1", Claim: "data", Content: "c1"}
	change(&snap)
	s.all.Snapshots = []state.Snapshot{snap}
}

func kindRows() []row {
	return append([]row{
		{"a class that serves", "storageclass/fast", func(*scene) {}},
		{"the default class, which keeps its volumes and binds late", "storageclass/fast", func(s *scene) {
			s.class.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
			s.class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
			s.class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}},
		{
			"a class of volumes made by hand", "storageclass/fast",
			func(s *scene) { s.class.Provisioner = volume.NoProvisioner },
		},
		{
			"a class whose driver's name is misspelt", "storageclass/fast",
			func(s *scene) { s.class.Provisioner = "d.exmaple.com" },
		},
		{"a class whose driver is one of many names", "storageclass/fast", func(s *scene) {
			s.class.Provisioner = "volumes.acme.test"
			s.register("zzz.example.com", "volumes.acme.example", "a.example.com", "b.example.com", "quite-another")
		}},
		{"a class whose driver is one of few names", "storageclass/fast", func(s *scene) { s.class.Provisioner = "nfs" }},
		{
			"a class whose driver is nowhere, and nor is another", "storageclass/fast",
			func(s *scene) { s.unbound(); s.all.CSINodes = nil },
		},
		{"a claim that waits for a volume of a class", "storageclass/fast", func(s *scene) {
			s.unbound()
			s.warn("uid-data", volume.ReasonProvisioningFailed, "rpc error: code = ResourceExhausted desc = pool is full")
		}},
		{
			"a claim of another class", "storageclass/fast",
			func(s *scene) { s.unbound(); s.claim.Spec.StorageClassName = ptr.To("slow") },
		},
		{"a driver that serves", "csidriver/d.example.com", func(*scene) {}},
		{"a driver without an object", "csidriver/d.example.com", func(s *scene) { s.all.Drivers, s.all.Classes = nil, nil }},
		{"a driver on many nodes", "csidriver/d.example.com", func(s *scene) {
			for _, name := range []string{"n3", "n4", "n5", "n6", "n7"} {
				s.all.CSINodes = append(s.all.CSINodes, csiNode(name))
			}
		}},
		{"a driver that is on no node", "csidriver/d.example.com", func(s *scene) { s.all.CSINodes = nil }},
		{"a driver that does not attach", "csidriver/d.example.com", func(s *scene) {
			s.attaching()
			s.attachment.Status.AttachError = &storagev1.VolumeError{Message: "Internal: disk on fire"}
		}},
		{
			"a driver that is not where the control plane runs", "csidriver/d.example.com",
			func(s *scene) { s.controls(); s.detached() },
		},
		{
			"a driver that is not where the control plane runs, and attaches nothing", "csidriver/d.example.com",
			func(s *scene) {
				s.controls()
				s.detached()
				s.driver.Spec.AttachRequired = ptr.To(false)
			},
		},
		{"a FlexVolume driver that is broken", "csidriver/d.example.com", func(s *scene) {
			s.flexDrivers(`{"d.example.com":"driver example.com/d does not initialise: jq is not installed"}`)
			s.detached()
		}},
	}, moreKindRows()...)
}

func moreKindRows() []row {
	return []row{
		{"what has registered on a node", "csinode/n1", func(*scene) {}},
		{"nothing has registered on a node", "csinode/n1", func(s *scene) { s.all.CSINodes = nil }},
		{"what has registered on a node that is gone", "csinode/n1", func(s *scene) { s.all.Nodes = nil }},
		{"a namespace where all is well", "namespace/ns", func(s *scene) { s.named(func(*corev1.Namespace) {}) }},
		{
			"a namespace where something waits", "namespace/ns",
			func(s *scene) { s.named(func(*corev1.Namespace) {}); s.attaching() },
		},
		{"a namespace with a Pod that has ended", "namespace/ns", func(s *scene) {
			s.named(func(*corev1.Namespace) {})
			s.pod.Status.Phase = corev1.PodSucceeded
		}},
		{"a namespace beside that of the claim", "namespace/ns", func(s *scene) {
			s.named(func(*corev1.Namespace) {})
			s.attaching()
			s.claim.Namespace, s.pod.Namespace = "other", "other"
		}},
		{"a namespace that is being deleted", "namespace/ns", func(s *scene) {
			s.leaving(corev1.NamespaceContentRemaining, "Some resources are remaining: pods. has 1 resource instances")
		}},
		{"a namespace that cannot be deleted", "namespace/ns", func(s *scene) {
			s.leaving(corev1.NamespaceDeletionDiscoveryFailure,
				"Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1")
		}},
		{
			"a snapshot that is ready", "volumesnapshot/s1",
			func(s *scene) { s.snapshot(func(s *state.Snapshot) { s.Ready = true }) },
		},
		{
			"a snapshot that nobody takes", "volumesnapshot/s1",
			func(s *scene) { s.snapshot(func(s *state.Snapshot) { s.Content = "" }) },
		},
		{"a snapshot that is being taken", "volumesnapshot/s1", func(s *scene) { s.snapshot(func(*state.Snapshot) {}) }},
		{
			"a snapshot of a claim that is not there", "volumesnapshot/s1",
			func(s *scene) { s.snapshot(func(s *state.Snapshot) { s.Claim = "gone" }) },
		},
		{"a snapshot that the driver refuses", "volumesnapshot/s1", func(s *scene) {
			s.snapshot(func(s *state.Snapshot) {
				s.Claim, s.Error = "", "rpc error: code = ResourceExhausted desc = pool is full"
			})
		}},
		{
			"a snapshot that is being deleted", "volumesnapshot/s1",
			func(s *scene) { s.snapshot(func(s *state.Snapshot) { s.Deleting = true }) },
		},
		{"a snapshot that a volume is made from", "volumesnapshot/s1", func(s *scene) {
			s.snapshot(func(s *state.Snapshot) { s.Deleting, s.Finalizers = true, []string{volume.FinalizerRestoring} })
		}},
		{"a snapshot that cannot be deleted", "volumesnapshot/s1", func(s *scene) {
			s.snapshot(func(s *state.Snapshot) { s.Deleting, s.Error = true, "the driver is busy" })
		}},
	}
}

func TestNearest(t *testing.T) {
	names := []string{"ceph.example.com", "local.volplane.dev", "nfs.example.com"}
	for _, c := range []struct{ name, nearest, alike string }{
		{"lokal.volplane.dev", "local.volplane.dev", "local.volplane.dev"},
		{"local.volplane.dev", "local.volplane.dev", "local.volplane.dev"},
		{"cephexample.com", "ceph.example.com", "ceph.example.com"},
		{"nfs.example.org", "nfs.example.com", "nfs.example.com"},
		{"nothing", "nfs.example.com", ""},
	} {
		if got, alike := why.Nearest(c.name, names), why.Alike(c.name, names); got[0] != c.nearest || alike != c.alike {
			t.Errorf("%s: nearest %s, alike %q; want %s, %q", c.name, strings.Join(got, " "), alike, c.nearest, c.alike)
		}
	}
	if why.Alike("x", nil) != "" || why.Alike("sx", []string{"sc"}) != "sc" {
		t.Error("of nothing something is chosen, or one letter is too much")
	}
}
