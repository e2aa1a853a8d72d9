package whytest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Named makes the scene one of a namespace that is read too.
func (s *Scene) Named(change func(*corev1.Namespace)) {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	change(n)
	s.All.Namespaces = []*corev1.Namespace{n}
}

// Leaving marks the namespace as being deleted, with a condition that explains the delay.
func (s *Scene) Leaving(kind corev1.NamespaceConditionType, message string) {
	s.Named(func(n *corev1.Namespace) {
		n.DeletionTimestamp = Now()
		n.Status.Conditions = []corev1.NamespaceCondition{
			{Type: kind, Status: corev1.ConditionTrue, Message: message},
			{
				Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionFalse,
				Message: "All content-preserving finalizers finished",
			},
		}
	})
}

// Register adds drivers to n2.
func (s *Scene) Register(names ...string) {
	for _, n := range names {
		s.All.CSINodes[1].Spec.Drivers = append(s.All.CSINodes[1].Spec.Drivers, storagev1.CSINodeDriver{Name: n})
	}
}

// KindRows are questions about classes, drivers, nodes, namespaces and snapshots.
func KindRows() []Row {
	return append([]Row{
		{"a class that serves", "storageclass/fast", func(*Scene) {}},
		{"the default class, which keeps its volumes and binds late", "storageclass/fast", func(s *Scene) {
			s.Class.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
			s.Class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
			s.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}},
		{
			"a class of volumes made by hand", "storageclass/fast",
			func(s *Scene) { s.Class.Provisioner = volume.NoProvisioner },
		},
		{
			"a class whose driver's name is misspelt", "storageclass/fast",
			func(s *Scene) { s.Class.Provisioner = "d.exmaple.com" },
		},
		{"a class whose driver is one of many names", "storageclass/fast", func(s *Scene) {
			s.Class.Provisioner = "volumes.acme.test"
			s.Register("zzz.example.com", "volumes.acme.example", "a.example.com", "b.example.com", "quite-another")
		}},
		{"a class whose driver is one of few names", "storageclass/fast", func(s *Scene) { s.Class.Provisioner = "nfs" }},
		{
			"a class whose driver is nowhere, and nor is another", "storageclass/fast",
			func(s *Scene) { s.Unbound(); s.All.CSINodes = nil },
		},
		{"a claim that waits for a volume of a class", "storageclass/fast", func(s *Scene) {
			s.Unbound()
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "rpc error: code = ResourceExhausted desc = pool is full")
		}},
		{
			"a claim of another class", "storageclass/fast",
			func(s *Scene) { s.Unbound(); s.Claim.Spec.StorageClassName = ptr.To("slow") },
		},
		{"a driver that serves", "csidriver/d.example.com", func(*Scene) {}},
		{"a driver without an object", "csidriver/d.example.com", func(s *Scene) { s.All.Drivers, s.All.Classes = nil, nil }},
		{"a driver on many nodes", "csidriver/d.example.com", func(s *Scene) {
			for _, name := range []string{"n3", "n4", "n5", "n6", "n7"} {
				s.All.CSINodes = append(s.All.CSINodes, CSINode(name))
			}
		}},
		{"a driver that is on no node", "csidriver/d.example.com", func(s *Scene) { s.All.CSINodes = nil }},
		{"a driver that does not attach", "csidriver/d.example.com", func(s *Scene) {
			s.Attaching()
			s.Attachment.Status.AttachError = &storagev1.VolumeError{Message: "Internal: disk on fire"}
		}},
		{
			"a driver that is not where the control plane runs", "csidriver/d.example.com",
			func(s *Scene) { s.Controls(); s.Detached() },
		},
		{
			"a driver that is not where the control plane runs, and attaches nothing", "csidriver/d.example.com",
			func(s *Scene) {
				s.Controls()
				s.Detached()
				s.Driver.Spec.AttachRequired = ptr.To(false)
			},
		},
		{"a FlexVolume driver that is broken", "csidriver/d.example.com", func(s *Scene) {
			s.FlexDrivers(`{"d.example.com":"driver example.com/d does not initialise: jq is not installed"}`)
			s.Detached()
		}},
	}, moreKindRows()...)
}

func moreKindRows() []Row {
	return append([]Row{
		{"what has registered on a node", "csinode/n1", func(*Scene) {}},
		{"nothing has registered on a node", "csinode/n1", func(s *Scene) { s.All.CSINodes = nil }},
		{"what has registered on a node that is gone", "csinode/n1", func(s *Scene) { s.All.Nodes = nil }},
		{"a namespace where all is well", "namespace/ns", func(s *Scene) { s.Named(func(*corev1.Namespace) {}) }},
		{
			"a namespace where something waits", "namespace/ns",
			func(s *Scene) { s.Named(func(*corev1.Namespace) {}); s.Attaching() },
		},
		{"a namespace with a Pod that has ended", "namespace/ns", func(s *Scene) {
			s.Named(func(*corev1.Namespace) {})
			s.Pod.Status.Phase = corev1.PodSucceeded
		}},
		{"a namespace beside that of the claim", "namespace/ns", func(s *Scene) {
			s.Named(func(*corev1.Namespace) {})
			s.Attaching()
			s.Claim.Namespace, s.Pod.Namespace = "other", "other"
		}},
		{"a namespace that is being deleted", "namespace/ns", func(s *Scene) {
			s.Leaving(corev1.NamespaceContentRemaining, "Some resources are remaining: pods. has 1 resource instances")
		}},
		{"a namespace that cannot be deleted", "namespace/ns", func(s *Scene) {
			s.Leaving(corev1.NamespaceDeletionDiscoveryFailure,
				"Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1")
		}},
	}, slices.Concat(snapshotRows(), snapshottedRows(), groupRows())...)
}
