package volume

// Names that Kubernetes' own components read or write. They are part of the
// contract with other software and must match it byte for byte.
const (
	// AnnBindCompleted on a claim says that the bind of claim and volume was
	// finished once (value "yes").
	AnnBindCompleted = "pv.kubernetes.io/bind-completed"
	// AnnBoundByController on a claim or volume says that the controller, and
	// not a user, made this half of the link (value "yes").
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"
	// AnnProvisionedBy on a volume names the provisioner that made it.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnMigratedTo marks objects that belong to an in-tree plugin's CSI
	// successor.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnSelectedNode on a claim names the node that a late-binding claim's
	// consumer was placed on.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnStorageProvisioner on a claim names the provisioner that is asked to
	// make a volume for it.
	AnnStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnBetaStorageProvisioner is the older spelling, written as well (S4).
	AnnBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnBetaStorageClass is the older spelling of spec.storageClassName.
	AnnBetaStorageClass = "volume.beta.kubernetes.io/storage-class"
	// AnnDefaultClass marks a StorageClass as the default one ("true").
	AnnDefaultClass = "storageclass.kubernetes.io/is-default-class"
	// AnnBetaDefaultClass is the older spelling of AnnDefaultClass.
	AnnBetaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
	// AnnPreResizeCapacity on a volume keeps the capacity before a resize
	// that began before the bind.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnNodeID on a VolumeAttachment keeps the driver's name of the node, so
	// that detach works after the CSINode is gone.
	AnnNodeID = "csi.alpha.kubernetes.io/node-id"
	// AnnLegacyNodeID on a Node maps driver names to node ids (S1-010).
	AnnLegacyNodeID = "csi.volume.kubernetes.io/nodeid"
	// AnnControllerManagedAttach on a Node says that the attach/detach
	// controller, not the node, attaches volumes.
	AnnControllerManagedAttach = "volumes.kubernetes.io/controller-managed-attach-detach"

	// AnnDeletionSecretName and AnnDeletionSecretNamespace on a volume keep
	// the provisioner secret's reference for deletion, when the claim whose
	// templates named it is gone.
	AnnDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	AnnDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	// AnnModifySecretName and AnnModifySecretNamespace on a volume name the
	// Secret for changing its attributes.
	AnnModifySecretName      = "volume.kubernetes.io/controller-modify-secret-name"
	AnnModifySecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"

	// FinalizerClaimProtection keeps a claim while a consumer uses it.
	FinalizerClaimProtection = "kubernetes.io/pvc-protection"
	// FinalizerVolumeProtection keeps a volume while a claim is bound to it.
	FinalizerVolumeProtection = "kubernetes.io/pv-protection"
	// FinalizerProvisioner keeps a volume object until the driver has deleted
	// the volume behind it.
	FinalizerProvisioner = "external-provisioner.volume.kubernetes.io/finalizer"
	// FinalizerCloning keeps a claim, and with it its volume, while a copy of it
	// is being made.
	FinalizerCloning = "provisioner.storage.kubernetes.io/cloning-protection"
	// FinalizerRestoring keeps a snapshot while a volume is being made from it.
	FinalizerRestoring = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// FinalizerAttacherPrefix and the sanitized driver name form the
	// finalizer that keeps a VolumeAttachment, and the volume it names, until
	// the driver has detached (S1-053, S1-054).
	FinalizerAttacherPrefix = "external-attacher/"

	// GroupSnapshot, KindSnapshot and ResourceSnapshots name the custom
	// resource of snapshots.
	GroupSnapshot     = "snapshot.storage.k8s.io"
	KindSnapshot      = "VolumeSnapshot"
	ResourceSnapshots = "volumesnapshots"
	// ResourceSnapshotContents are the snapshots at the drivers.
	ResourceSnapshotContents = "volumesnapshotcontents"
	// AnnAllowModeChange on a content lets its data be restored in another
	// volume mode.
	AnnAllowModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"

	// LabelDriver and LabelManagedBy on a CSIStorageCapacity name the driver
	// that it tells of and who keeps it; ManagedByProvisioner is who stands
	// where the provisioner's sidecar does.
	LabelDriver          = "csi.storage.k8s.io/drivername"
	LabelManagedBy       = "csi.storage.k8s.io/managed-by"
	ManagedByProvisioner = "external-provisioner"
	// CapacityPrefix begins the name of each CSIStorageCapacity.
	CapacityPrefix = "csisc-"

	// NoProvisioner as a class's provisioner says that volumes of the class
	// are made by hand.
	NoProvisioner = "kubernetes.io/no-provisioner"
)

// Names of volplane's own.
const (
	// Domain prefixes every name of volplane's own.
	Domain = "volplane.dev"
	// LocalDriver is the name of the bundled driver.
	LocalDriver = "local.volplane.dev"
	// DefaultClass is the StorageClass of the bundled driver that exists after
	// `volplane up`.
	DefaultClass = "local"
	// TopologyPool is the topology key of the bundled driver: nodes with the
	// same value reach the same pool of volumes.
	TopologyPool = "topology.local.volplane.dev/pool"
	// ConditionVolumesMounted on a Pod says whether all its volumes are
	// mounted; its message says where.
	ConditionVolumesMounted = "volplane.dev/VolumesMounted"
	// ConditionVolumesHealthy on a Pod is False while one of its volumes is ill,
	// as its message says; a Pod whose volumes never were has none.
	ConditionVolumesHealthy = "volplane.dev/VolumesHealthy"
	// AnnMountAt on a Pod asks the node agent to bind the Pod's only volume at
	// this absolute host path as well. The API server lets only users who may
	// mount on the host set it.
	AnnMountAt = "volplane.dev/mount-at"
	// AnnMountOptions on such a Pod is what the files may do there that they may
	// not otherwise, "suid" and "dev". It is as well guarded.
	AnnMountOptions = "volplane.dev/mount-options"
	// AnnNext says on an event who has to act next.
	AnnNext = "volplane.dev/next"
	// AnnNextMounted and AnnNextHealthy say on a Pod who has to act next about
	// what its conditions of these names say, which have no room for it.
	AnnNextMounted = "volplane.dev/next-mounted"
	AnnNextHealthy = "volplane.dev/next-healthy"
	// AnnDriverNotes on a Node has the drivers that a host of drivers, which is
	// the bridge of FlexVolume's, finds there: a JSON object of CSI names, each with
	// what is wrong with the driver, or "".
	AnnDriverNotes = "volplane.dev/flex-drivers"
	// AnnDriverDir on a Node is the directory in which that host looks for them.
	AnnDriverDir = "volplane.dev/flex-plugin-dir"
	// AnnControlPlane on a Node says that its agent runs in the control plane's
	// process, so that the drivers that have registered there are those that the
	// controllers call (value "yes").
	AnnControlPlane = "volplane.dev/control-plane"
	// LabelMadeBy with the value Program is on objects that volplane made.
	LabelMadeBy = "app.kubernetes.io/managed-by"
	Program     = "volplane"
	// LabelIntents on a ConfigMap names the log whose intents it keeps: what a
	// provisioner is about to do, written before it does it.
	LabelIntents = "volplane.dev/intents"
	// AnnIntentsAfter on such a ConfigMap is the resource version that the last
	// write of it was made for.
	AnnIntentsAfter = "volplane.dev/intents-after"
	// KubeletDir is the directory of a kubelet that was not told another.
	KubeletDir = "/var/lib/kubelet"
	// NamespaceSystem is where components keep objects of their own.
	NamespaceSystem = "kube-system"
	// ConfigRestored is a ConfigMap in NamespaceSystem that is there after the API
	// was restored from a backup, until an administrator deletes it: nothing is
	// unmounted, detached or deleted meanwhile, because the API may not know of
	// what was made since the backup. Its data has RestoredMade, the backup's time.
	ConfigRestored = "volplane-restored"
	RestoredMade   = "made"
	// AnnMigratedFrom on a volume is the uid of the volume in whose place it was
	// made when it was moved from a Flex plugin to the bridge, or back.
	AnnMigratedFrom = "volplane.dev/migrated-from"
	// LabelMigration on a ConfigMap says that it keeps what such a volume and its
	// claim were.
	LabelMigration = "volplane.dev/flex-migration"
	// AnnDetach on a VolumeAttachment keeps all that the detach needs, as JSON.
	AnnDetach = "volplane.dev/detach"
)

// SanitizedDriver returns the driver's name as it may appear in a finalizer:
// each character outside [a-zA-Z0-9-] becomes "-", and a trailing "-" gets an
// "X" (S1-004; the form of today's sidecars).
func SanitizedDriver(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
			b[i] = '-'
		}
	}
	if n := len(b); n > 0 && b[n-1] == '-' {
		b = append(b, 'X')
	}
	return string(b)
}

// AttacherFinalizer returns the finalizer that the attacher of driver sets.
func AttacherFinalizer(driver string) string {
	return FinalizerAttacherPrefix + SanitizedDriver(driver)
}

// Key is the name of a volume among all drivers.
func Key(driver, handle string) string { return driver + "^" + handle }

// UniqueName returns the name under which a CSI volume appears in a Node's
// volumesAttached and volumesInUse.
func UniqueName(driver, handle string) string {
	return "kubernetes.io/csi/" + Key(driver, handle)
}

// EphemeralClaim returns the name of the claim that is made for a generic
// ephemeral volume of a Pod. Two Pods' volumes may have the same: the claim's
// owner tells whose it is.
func EphemeralClaim(pod, volume string) string { return pod + "-" + volume }
