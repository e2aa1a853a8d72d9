package volume

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// Names that components of Kubernetes read or write. Other software relies on them: they must match byte for byte.
const (
	// AnnBindCompleted on a claim says that the claim was fully bound to its volume at least once (value "yes").
	AnnBindCompleted = "pv.kubernetes.io/bind-completed"
	// AnnBoundByController on a claim or volume says that a controller, not a user, set
	// the object's reference to the other one (value "yes").
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"
	// KeyIdentity is the attribute of a volume by which a provisioner marks those that it has created.
	KeyIdentity = "storage.kubernetes.io/csiProvisionerIdentity"
	// AnnProvisionedBy on a volume names the provisioner that created it.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnProvisionedOn on a volume names the node whose controllers have made it and serve it: its driver is node-local.
	AnnProvisionedOn = "volplane.dev/provisioned-on"
	// AnnLostWith on a volume, a content or an attachment of a node-local driver names the node that was lost for good
	// with it: its object is deleted without a call of the driver, which is no longer possible.
	AnnLostWith = "volplane.dev/lost-with"
	// AnnControllers on a CSIDriver says where the controllers may run that call the driver. ControllersOnNodes means: on
	// each node that has the driver, for the node's own volumes. Otherwise they run on one host, for all volumes: on the
	// control plane's or on one of the nodes that are named here, see Delegation.
	AnnControllers     = "volplane.dev/controllers"
	ControllersOnNodes = "nodes"
	// AnnSelectedNode on a claim of a class with WaitForFirstConsumer names the node that
	// was chosen for the Pod that uses the claim.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnAlphaSelectedNode is the older spelling of AnnSelectedNode. It is read where that is missing, and never written
	// (S1-027).
	AnnAlphaSelectedNode = "volume.alpha.kubernetes.io/selected-node"
	// AnnRefusedOn on a claim names the nodes whose drivers could not make its volume, the latest one last.
	AnnRefusedOn = "volplane.dev/refused-on"
	// AnnStorageProvisioner on a claim names the provisioner that must create its volume.
	AnnStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnBetaStorageProvisioner is the older spelling of AnnStorageProvisioner; both are written (S4).
	AnnBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnBetaStorageClass is the older spelling of spec.storageClassName.
	AnnBetaStorageClass = "volume.beta.kubernetes.io/storage-class"
	// AnnDefaultClass marks a StorageClass as the default (value "true").
	AnnDefaultClass = "storageclass.kubernetes.io/is-default-class"
	// AnnBetaDefaultClass is the older spelling of AnnDefaultClass.
	AnnBetaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
	// AnnPreResizeCapacity on a volume is its capacity before the resize that is in progress.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnNodeID on a VolumeAttachment is the driver's id of the node, so that the volume can be
	// detached after the CSINode was deleted.
	AnnNodeID = "csi.alpha.kubernetes.io/node-id"
	// AnnLegacyNodeID on a Node maps driver names to node ids (S1-010).
	AnnLegacyNodeID = "csi.volume.kubernetes.io/nodeid"
	// AnnControllerManagedAttach on a Node says that the attach/detach controller, not the node's agent, attaches volumes.
	AnnControllerManagedAttach = "volumes.kubernetes.io/controller-managed-attach-detach"

	// AnnDeletionSecretName and AnnDeletionSecretNamespace on a volume name the Secret for deleting it: its name may have
	// been derived from a claim that no longer exists by then.
	AnnDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	AnnDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	// AnnModifySecretName and AnnModifySecretNamespace on a volume name the Secret for
	// modifying it by a VolumeAttributesClass.
	AnnModifySecretName      = "volume.kubernetes.io/controller-modify-secret-name"
	AnnModifySecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"

	// FinalizerClaimProtection keeps a claim while a Pod uses it.
	FinalizerClaimProtection = "kubernetes.io/pvc-protection"
	// FinalizerAttributesProtection keeps a VolumeAttributesClass while a claim or volume names it.
	FinalizerAttributesProtection = "kubernetes.io/vac-protection"
	// FinalizerVolumeProtection keeps a volume while a claim is bound to it.
	FinalizerVolumeProtection = "kubernetes.io/pv-protection"
	// FinalizerProvisioner keeps a PersistentVolume until the driver has deleted the volume it stands for.
	FinalizerProvisioner = "external-provisioner.volume.kubernetes.io/finalizer"
	// FinalizerCloning keeps a claim, and thereby its volume, while the volume is being cloned.
	FinalizerCloning = "provisioner.storage.kubernetes.io/cloning-protection"
	// FinalizerRestoring keeps a snapshot while a volume is being created from it.
	FinalizerRestoring = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// SuffixPopulating ends the finalizer with which a populator keeps the claim for which it fills a volume.
	SuffixPopulating = "/populate-target-protection"
	// PrefixPopulating, followed by the UID of the claim for which a populator fills a volume, is the name of the claim by
	// which the populator has the volume made.
	PrefixPopulating = "prime-"
	// FinalizerSnapshotSource keeps a claim while a snapshot of it is being taken.
	FinalizerSnapshotSource = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	// FinalizerSnapshotAsSource keeps a snapshot while a claim that is to be made from it waits.
	FinalizerSnapshotAsSource = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// FinalizerSnapshotBound keeps a snapshot while its content exists, if the driver's snapshot goes with it.
	FinalizerSnapshotBound = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	// FinalizerContentBound keeps a VolumeSnapshotContent until the driver's snapshot is deleted or released.
	FinalizerContentBound = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// FinalizerSnapshotInGroup keeps a snapshot while the group exists that it is a member of.
	FinalizerSnapshotInGroup = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
	// FinalizerAttacherPrefix, followed by the sanitized driver name, is the finalizer that keeps a VolumeAttachment and
	// its volume until the driver has detached the volume (S1-053, S1-054).
	FinalizerAttacherPrefix = "external-attacher/"

	// GroupSnapshot, KindSnapshot and ResourceSnapshots name the custom resource of snapshots.
	GroupSnapshot     = "snapshot.storage.k8s.io"
	KindSnapshot      = "VolumeSnapshot"
	ResourceSnapshots = "volumesnapshots"
	// ResourceSnapshotContents names the custom resource that stands for a driver's snapshot.
	ResourceSnapshotContents = "volumesnapshotcontents"
	// ResourceSnapshotClasses names the custom resource of the classes of snapshots.
	ResourceSnapshotClasses = "volumesnapshotclasses"
	// AnnAllowModeChange on a VolumeSnapshotContent allows it to be restored to a volume of the other volume mode.
	AnnAllowModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	// AnnDefaultSnapshotClass marks a VolumeSnapshotClass as the default of its driver (value "true").
	AnnDefaultSnapshotClass = "snapshot.storage.kubernetes.io/is-default-class"
	// AnnSnapshotCreating on a VolumeSnapshotContent says that the driver may have been asked to take its snapshot, and
	// has given no final answer yet (value "yes"). It is written before the driver is called.
	AnnSnapshotCreating = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	// AnnSnapshotDeleting on a VolumeSnapshotContent says that its snapshot is being deleted (value "yes"). Without it
	// no snapshot of a driver is deleted.
	AnnSnapshotDeleting = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	// AnnSnapshotSecretName and AnnSnapshotSecretNamespace on a VolumeSnapshotContent name the Secret for taking and
	// deleting the driver's snapshot.
	AnnSnapshotSecretName      = "snapshot.storage.kubernetes.io/deletion-secret-name"
	AnnSnapshotSecretNamespace = "snapshot.storage.kubernetes.io/deletion-secret-namespace"
	// GroupGateway, GatewayVersion and ResourceGrants name the custom resource by which the owner of a namespace lets
	// claims of others have data of this one.
	GroupGateway   = "gateway.networking.k8s.io"
	GatewayVersion = "v1beta1"
	ResourceGrants = "referencegrants"
	// GroupMetadata, MetadataVersion and ResourceMetadataServices name the custom resource by which clients find who
	// serves the changed blocks of a driver.
	GroupMetadata            = "cbt.storage.k8s.io"
	MetadataVersion          = "v1beta1"
	ResourceMetadataServices = "snapshotmetadataservices"
	// AudienceMetadata is what the tokens of clients must be for that ask a control plane of volplane for changed blocks.
	AudienceMetadata = "changed-blocks.volplane.dev"
	// GroupGroupSnapshot names the API group of the custom resources of groups of snapshots. KindGroup and ResourceGroups
	// are those of a group, and ResourceGroupContents and ResourceGroupClasses the resources that stand for a driver's
	// group, and for the classes of groups.
	GroupGroupSnapshot    = "groupsnapshot.storage.k8s.io"
	KindGroup             = "VolumeGroupSnapshot"
	ResourceGroups        = "volumegroupsnapshots"
	ResourceGroupContents = "volumegroupsnapshotcontents"
	ResourceGroupClasses  = "volumegroupsnapshotclasses"
	// AnnDefaultGroupClass marks a VolumeGroupSnapshotClass as the default of its driver (value "true").
	AnnDefaultGroupClass = "groupsnapshot.storage.kubernetes.io/is-default-class"
	// FinalizerGroupBound keeps a VolumeGroupSnapshot until its content and its members are deleted or released.
	FinalizerGroupBound = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
	// FinalizerGroupContentBound keeps a VolumeGroupSnapshotContent until the driver's group is deleted or released.
	FinalizerGroupContentBound = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"
	// AnnGroupCreating on a VolumeGroupSnapshotContent says that the driver may have been asked to take its group, and
	// has given no final answer yet (value "yes"). It is written before the driver is called.
	AnnGroupCreating = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created"
	// AnnGroupDeleting on a VolumeGroupSnapshotContent says that its group is being deleted (value "yes"). Without it no
	// group of a driver is deleted.
	AnnGroupDeleting = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
	// AnnGroupSecretName and AnnGroupSecretNamespace on a VolumeGroupSnapshotContent name the Secret for taking and
	// deleting the driver's group.
	AnnGroupSecretName      = "groupsnapshot.storage.kubernetes.io/deletion-secret-name"
	AnnGroupSecretNamespace = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace"
	// AnnGroupSnapshotHandle on a VolumeSnapshotContent says that it is a member of a group, which another controller
	// takes as a whole.
	AnnGroupSnapshotHandle = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"

	// LabelDriver on a CSIStorageCapacity names its driver, and LabelManagedBy the component that maintains it.
	// ManagedByProvisioner is the component's name: upstream's external-provisioner and volplane use the same.
	LabelDriver          = "csi.storage.k8s.io/drivername"
	LabelManagedBy       = "csi.storage.k8s.io/managed-by"
	ManagedByProvisioner = "external-provisioner"
	// CapacityPrefix is the prefix of the name of each CSIStorageCapacity.
	CapacityPrefix = "csisc-"

	// NoProvisioner is the provisioner of a StorageClass whose volumes an administrator creates.
	NoProvisioner = "kubernetes.io/no-provisioner"
)

// Names that volplane itself has defined.
const (
	// Domain is the domain of all names that volplane has defined.
	Domain = "volplane.dev"
	// LocalDriver is the name of the bundled driver.
	LocalDriver = "local.volplane.dev"
	// DefaultClass is the StorageClass of the bundled driver that `volplane up` creates.
	DefaultClass = "local"
	// TopologyPool is the topology key of the bundled driver: nodes with the same value can use the same pool of volumes.
	TopologyPool = "topology.local.volplane.dev/pool"
	// ConditionVolumesMounted on a Pod says whether all its volumes are mounted; its message says where.
	ConditionVolumesMounted = "volplane.dev/VolumesMounted"
	// ConditionVolumesHealthy on a Pod is False while a driver reports one of its volumes as
	// abnormal; its message says what is wrong. A Pod whose volumes were always healthy lacks it.
	ConditionVolumesHealthy = "volplane.dev/VolumesHealthy"
	// AnnMountAt on a Pod asks the node agent to bind-mount the Pod's only volume at this absolute host path, too. The API
	// server accepts it only from users who may mount on the host.
	AnnMountAt = "volplane.dev/mount-at"
	// AnnMountFor on a Pod with AnnMountAt is the path at which the volume was requested, if that is another one: where an
	// automount waits, the node agent cannot mount. It is only displayed, and nothing is mounted because of it.
	AnnMountFor = "volplane.dev/mount-for"
	// AnnMountOptions on a Pod with AnnMountAt has options of that mount, as mount(8) has them: "suid"
	// and "dev" allow what it forbids otherwise. The API server accepts it from the same users only.
	AnnMountOptions = "volplane.dev/mount-options"
	// AnnUnmountEnds on a Pod with AnnMountAt says that a manual unmount of that path ends this
	// use of the volume: the node agent deletes the Pod instead of mounting again.
	AnnUnmountEnds = "volplane.dev/unmount-ends"
	// AnnNext on an event names who has to act next.
	AnnNext = "volplane.dev/next"
	// AnnCause on an event has its Cause.
	AnnCause = "volplane.dev/cause"
	// AnnAttempt on an event counts the failures in a row, the newest included.
	AnnAttempt = "volplane.dev/attempt"
	// AnnNextTry on an event is the time, in RFC 3339, at which the next try begins at the latest.
	AnnNextTry = "volplane.dev/next-try"
	// AnnRetryWithin on an event that is not written for each failure is the longest pause between
	// two tries, as a Go duration. The object has the time of the last one.
	AnnRetryWithin = "volplane.dev/retry-within"
	// AnnNextScheduled, AnnNextMounted, and AnnNextHealthy on a Pod name who has to act next about the conditions
	// PodScheduled, VolumesMounted, and VolumesHealthy: a condition has no field for it.
	AnnNextScheduled = "volplane.dev/next-scheduled"
	AnnNextMounted   = "volplane.dev/next-mounted"
	AnnNextHealthy   = "volplane.dev/next-healthy"
	// AnnCauseScheduled, AnnCauseMounted, and AnnCauseHealthy on a Pod have the causes of these conditions, and AnnPaths
	// has where its volumes are mounted, by their names in the Pod.
	AnnCauseScheduled = "volplane.dev/cause-scheduled"
	AnnCauseMounted   = "volplane.dev/cause-mounted"
	AnnCauseHealthy   = "volplane.dev/cause-healthy"
	AnnPaths          = "volplane.dev/paths"
	// AnnClaims on the event of a Pod that was deleted because of its node names the claims that it
	// used, separated by commas.
	AnnClaims = "volplane.dev/claims"
	// AnnCalledAt on a Pod is the time, in RFC 3339, at which the driver was called that its condition
	// VolumesMounted waits for.
	AnnCalledAt = "volplane.dev/called-at"
	// AnnDriverNotes on a Node lists the drivers that the FlexVolume bridge has discovered there: a JSON object from each
	// driver's CSI name to what is wrong with the driver, or "".
	AnnDriverNotes = "volplane.dev/flex-drivers"
	// AnnFlexDriver on a CSIDriver names the FlexVolume driver that a bridge serves under the name of the CSIDriver.
	AnnFlexDriver = "volplane.dev/flex-driver"
	// AnnDriverDir on a Node is the directory in which the bridge looks for drivers.
	AnnDriverDir = "volplane.dev/flex-plugin-dir"
	// AnnRefused on a Node says which drivers its agent has not registered, and AnnNotRun which drivers' programs do not
	// run there: a JSON object from each driver's CSI name to the cause.
	AnnRefused = "volplane.dev/refused-drivers"
	AnnNotRun  = "volplane.dev/drivers-not-run"
	// AnnControlPlane on a Node says that its agent runs in the process of a control plane. The value has the addresses,
	// host:port with commas, at which that is reached; it is "yes" where they are not known.
	AnnControlPlane = "volplane.dev/control-plane"
	// AnnVersion on a role, a binding or the definition of a custom resource is the version of volplaned that wrote it.
	AnnVersion = "volplane.dev/version"
	// LabelMadeBy says who has created an object: Program for volplane itself, and a name of its own for each door.
	LabelMadeBy = "app.kubernetes.io/managed-by"
	Program     = "volplane"
	// LabelIntents on a ConfigMap or Lease names the intent log that the object is a part of. A
	// provisioner writes there what it is about to do, before it does it.
	LabelIntents = "volplane.dev/intents"
	// AnnIntents on a Lease with LabelIntents has what is in that part of the log, as a JSON object of texts.
	AnnIntents = "volplane.dev/intents"
	// AnnIntentsAfter on an object of an intent log is the resource version that its last write has replaced.
	AnnIntentsAfter = "volplane.dev/intents-after"
	// KubeletDir is the default root directory of a kubelet.
	KubeletDir = "/var/lib/kubelet"
	// NamespaceSystem is the namespace of objects that components keep for themselves.
	NamespaceSystem = "kube-system"
	// ConfigRestored is a ConfigMap in NamespaceSystem that exists from the restore of an API backup until an
	// administrator deletes it. While it exists nothing is unmounted, detached or deleted, because the API may not know
	// what was created after the backup. Its key RestoredMade is the time of the backup. RestoredLacks is set if no
	// restore was requested, but an older store was found in the place of a newer one: it is the last known time of the
	// newer one.
	ConfigRestored = "volplane-restored"
	RestoredMade   = "made"
	RestoredLacks  = "lacks"
	// ConfigPlanes is a ConfigMap in kube-public with the addresses of control planes, host:port with commas, by the names
	// of their nodes. It exists where several may have one store.
	ConfigPlanes = "volplane-control-planes"
	// AnnMigratedTo on a volume of a plugin of Kubernetes' own is the driver that has taken the plugin's place.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnMigratedFrom on a volume is the UID of the volume that it replaced when it was
	// moved from a Flex plugin to the bridge, or back.
	AnnMigratedFrom = "volplane.dev/migrated-from"
	// LabelMigration is on a ConfigMap that keeps a moved volume and its claim as they were before the move.
	LabelMigration = "volplane.dev/flex-migration"
	// AnnSnapshotParameters on a VolumeSnapshotContent or a VolumeGroupSnapshotContent holds the parameters with which
	// the driver is asked to take what it stands for, as JSON: its class may change or be deleted before the driver has
	// answered.
	AnnSnapshotParameters = "volplane.dev/snapshot-parameters"
	// AnnSnapshotTopologies on a VolumeSnapshotContent holds the segments in which its snapshot is to be usable, as JSON:
	// a class may change, and the driver must be asked again with the same.
	AnnSnapshotTopologies = "volplane.dev/snapshot-topologies"
	// AnnSnapshotPlaces on a VolumeGroupSnapshotContent holds from where the snapshots of its group can be used, as JSON:
	// an object with the nodeAffinity of the VolumeSnapshotContent by the handle of the volume. The group's own API has no
	// field for it.
	AnnSnapshotPlaces = "volplane.dev/snapshot-places"
	// AnnSnapshotName on either content holds the name under which the driver is asked, if a user can choose names.
	AnnSnapshotName = "volplane.dev/snapshot-name"
	// LabelSnapshotsOf on the same names the node whose csi-snapshotter calls the driver, if each node has one.
	LabelSnapshotsOf = "snapshot.storage.kubernetes.io/managed-by"
	// AnnDetach on a VolumeAttachment holds all that a detach needs, as JSON.
	AnnDetach = "volplane.dev/detach"
)

// SanitizedDriver returns the driver's name as it may appear in a finalizer: each character outside [a-zA-Z0-9-]
// becomes "-", and an "X" is added to a trailing "-". Upstream's sidecars use the same form (S1-004).
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

// AttacherFinalizer returns the finalizer that the attacher sets for a driver.
func AttacherFinalizer(driver string) string {
	return FinalizerAttacherPrefix + SanitizedDriver(driver)
}

// Key returns a name for a volume that is unique across drivers.
func Key(driver, handle string) string { return driver + "^" + handle }

// UniqueName returns the name under which a CSI volume appears in a Node's volumesAttached and volumesInUse.
func UniqueName(driver, handle string) string {
	return "kubernetes.io/csi/" + Key(driver, handle)
}

// EphemeralClaim returns the name of the claim for a generic ephemeral volume of a Pod. The volumes of two Pods may
// have the same claim name: the claim's owner shows whose it is.
func EphemeralClaim(pod, volume string) string { return pod + "-" + volume }

// AskedPath returns the path of the host at which a Pod's volume was requested; "" if it was not.
func AskedPath(annotations map[string]string) string {
	at, asked := annotations[AnnMountAt], annotations[AnnMountFor]
	if at != "" && asked != "" {
		return asked
	}
	return at
}

// CutName returns the name in the request to a driver: a prefix and a UID. A length above 0 cuts the UID, without its
// hyphens, to so many characters; the name is no longer unique then.
func CutName(prefix, uid string, length int) string {
	if length > 0 {
		uid = strings.ReplaceAll(uid, "-", "")
		uid = uid[:min(length, len(uid))]
	}
	return prefix + "-" + uid
}

// Without returns a copy of a list, such as the finalizers of an object, without some of its entries; nil if none is
// left.
func Without(all []string, some ...string) []string {
	var left []string
	for _, one := range all {
		if !slices.Contains(some, one) {
			left = append(left, one)
		}
	}
	return left
}

// ProvisionerLease returns the name of the lease of a driver's provisioner. CSI sidecars hold it and those below, and
// so does any other process that calls the driver as its controller.
func ProvisionerLease(driver string) string { return leaseName("", driver) }

// AttacherLease returns the name of the lease of a driver's attacher.
func AttacherLease(driver string) string { return leaseName("external-attacher-leader-", driver) }

// ResizerLease returns the name of the lease of a driver's resizer.
func ResizerLease(driver string) string { return leaseName("external-resizer-", driver) }

// HealthLease returns the name of the lease of the process that queries a driver's controller for the
// health of volumes, as external-health-monitor does.
func HealthLease(driver string) string { return leaseName("external-health-monitor-leader-", driver) }

// SnapshotterLease returns the name of the lease of a driver's snapshotter, and SnapshotControllerLease that of the
// snapshot-controller of a cluster.
func SnapshotterLease(driver string) string { return leaseName("external-snapshotter-leader-", driver) }

// SnapshotControllerLease is described at SnapshotterLease.
const SnapshotControllerLease = "snapshot-controller-leader"

// LeaseOnNode returns the name of the lease for the same work on one node alone, beside a driver that is on each node.
func LeaseOnNode(name, node string) string {
	const most = 253
	if whole := name + "-" + node; len(whole) <= most {
		return whole
	}
	sum := sha256.Sum256([]byte(node))
	return fmt.Sprintf("%s-%x", name, sum[:16])
}

// ControlPlaneLease is the name of the lease of the one control plane that runs the controllers of the whole cluster,
// if several have one store. With LeaseOnNode it is the name of the lease of the control plane on a node.
const ControlPlaneLease = "volplane-control-plane"

// leaseName returns a name for an object, which has no upper case.
func leaseName(prefix, driver string) string {
	return prefix + strings.ToLower(SanitizedDriver(driver))
}

// AnnHeldWith on a lease names the first lease of its holder, without which the holder does not work, and the holder:
// "LEASE/HOLDER". It says nothing about other holders.
const AnnHeldWith = "volplane.dev/held-with"
