package volume

import "fmt"

// Reason is one word that says why a decision was taken. It appears unchanged in events,
// conditions, logs and `volplane why`.
type Reason string

// Because is the explanation that every decision returns.
type Because struct {
	// Reason is the explanation as one constant word.
	Reason Reason
	// Message is the explanation as one sentence that names the objects, for people: no program reads it. It never holds
	// a secret.
	Message string
	// Next is who acts next; it is zero when no one has to act.
	Next Actor
	Cause
}

// Say returns an explanation without a cause for programs.
func Say(r Reason, next Actor, message string) Because {
	return Because{Reason: r, Message: message, Next: next}
}

// Sayf is Say with a format.
func Sayf(r Reason, next Actor, format string, args ...any) Because {
	return Say(r, next, fmt.Sprintf(format, args...))
}

// Condition is the state of the object that a decision is about.
type Condition struct {
	Because
	// Stuck says that nothing will change until the cause is removed.
	Stuck bool
}

// Reasons for claims and volumes. Where upstream has an event reason with the same meaning, its
// spelling is used.
const (
	ReasonBound                Reason = "Bound"
	ReasonBinding              Reason = "Binding"
	ReasonFailedBinding        Reason = "FailedBinding"
	ReasonVolumeMismatch       Reason = "VolumeMismatch"
	ReasonWaitForFirstConsumer Reason = "WaitForFirstConsumer"
	ReasonWaitForPodScheduled  Reason = "WaitForPodScheduled"
	ReasonExternalProvisioning Reason = "ExternalProvisioning"
	ReasonClaimLost            Reason = "ClaimLost"
	ReasonClaimMisbound        Reason = "ClaimMisbound"
	ReasonClaimUIDMismatch     Reason = "ClaimUIDMismatch"
	ReasonDefaultClassAssigned Reason = "DefaultClassAssigned"
	ReasonVolumeMissing        Reason = "VolumeMissing"
	ReasonAvailable            Reason = "Available"
	ReasonReleased             Reason = "Released"
	ReasonRetained             Reason = "Retained"
	ReasonUnknownReclaimPolicy Reason = "VolumeUnknownReclaimPolicy"
	ReasonFailedRecycle        Reason = "VolumeFailedRecycle"
	ReasonInUse                Reason = "InUse"
	ReasonNotInUse             Reason = "NotInUse"
	ReasonProtecting           Reason = "Protecting"
	ReasonTerminating          Reason = "Terminating"
)

// Reasons for provisioning and deletion.
const (
	ReasonProvisioning              Reason = "Provisioning"
	ReasonProvisioningSucceeded     Reason = "ProvisioningSucceeded"
	ReasonProvisioningFailed        Reason = "ProvisioningFailed"
	ReasonProvisioningCleanupFailed Reason = "ProvisioningCleanupFailed"
	ReasonNotMine                   Reason = "NotMine"
	ReasonDriverMissing             Reason = "DriverMissing"
	ReasonDeleting                  Reason = "VolumeDelete"
	ReasonFailedDelete              Reason = "VolumeFailedDelete"
	ReasonStillAttached             Reason = "StillAttached"
	ReasonDriverBusy                Reason = "DriverBusy"
	ReasonCapacityReported          Reason = "CapacityReported"
	ReasonCapacityUnknown           Reason = "CapacityUnknown"
	ReasonCapacityObsolete          Reason = "CapacityObsolete"
	ReasonNotEnoughStorage          Reason = "NotEnoughStorage"
)

// Reasons for placement, attaching and mounting.
const (
	ReasonPlaced               Reason = "Scheduled"
	ReasonFailedPlacing        Reason = "FailedScheduling"
	ReasonAttaching            Reason = "Attaching"
	ReasonAttached             Reason = "SuccessfulAttachVolume"
	ReasonFailedAttach         Reason = "FailedAttachVolume"
	ReasonAttachLimit          Reason = "VolumeAttachmentLimitExceeded"
	ReasonMultiAttach          Reason = "MultiAttach"
	ReasonSELinuxLabelConflict Reason = "SELinuxLabelConflict"
	ReasonDetaching            Reason = "Detaching"
	ReasonAttachmentVanished   Reason = "AttachmentVanished"
	ReasonAttachedUnderOtherID Reason = "AttachedUnderOtherID"
	ReasonUnaskedAttachment    Reason = "UnaskedAttachment"
	ReasonFailedDetach         Reason = "FailedDetachVolume"
	ReasonStillMounted         Reason = "StillMounted"
	ReasonNodeGone             Reason = "NodeGone"
	ReasonLostWithNode         Reason = "LostWithNode"
	ReasonNodeReady            Reason = "NodeReady"
	ReasonNodeNotReady         Reason = "NodeNotReady"
	ReasonRegistered           Reason = "Registered"
	ReasonJournalTorn          Reason = "JournalTorn"
	ReasonMounting             Reason = "Mounting"
	ReasonMounted              Reason = "Mounted"
	ReasonFailedMount          Reason = "FailedMount"
	ReasonWaitForAttach        Reason = "WaitForAttach"
	ReasonWaitForBind          Reason = "WaitForBind"
	ReasonUnmounting           Reason = "Unmounting"
	ReasonFailedUnmount        Reason = "FailedUnmount"
	ReasonMountBroken          Reason = "MountBroken"
	ReasonMountUnknown         Reason = "MountUnknown"
	ReasonUnhealthy            Reason = "VolumeConditionAbnormal"
	ReasonHealthy              Reason = "VolumeConditionNormal"
	ReasonNodeFailed           Reason = "NodeFailed"
	ReasonNodeRecovered        Reason = "NodeRecovered"
	ReasonClaimMissing         Reason = "ClaimMissing"
	ReasonClaimMade            Reason = "SuccessfulCreate"
	ReasonFailedClaim          Reason = "FailedCreate"
	ReasonOwnerGone            Reason = "OwnerGone"
	ReasonNothingToDo          Reason = "NothingToDo"
	ReasonOrphaned             Reason = "Orphaned"
	ReasonAdopted              Reason = "Adopted"
	ReasonResizing             Reason = "Resizing"
	ReasonResized              Reason = "VolumeResizeSuccessful"
	ReasonFailedResize         Reason = "VolumeResizeFailed"
	ReasonModifying            Reason = "VolumeModify"
	ReasonModified             Reason = "VolumeModifySuccessful"
	ReasonFailedModify         Reason = "VolumeModifyFailed"
	ReasonModifyCanceled       Reason = "VolumeModifyCanceled"
	ReasonNodeResizePending    Reason = "FileSystemResizeRequired"
	ReasonNodeResized          Reason = "FileSystemResizeSuccessful"
	ReasonGroupIncomplete      Reason = "FSGroupIncomplete"
	ReasonFailedNodeResize     Reason = "FileSystemResizeFailed"
	ReasonRegistrationRefused  Reason = "RegistrationRefused"
	ReasonSharedNodeID         Reason = "SharedNodeID"
	ReasonLeaderGone           Reason = "LeaderGone"
)

// Reasons for snapshots. The spelling is that of upstream's snapshot-controller and csi-snapshotter, where they have a
// reason with the same meaning.
const (
	ReasonSnapshotPending        Reason = "CreatingSnapshot"
	ReasonSnapshotCreated        Reason = "SnapshotCreated"
	ReasonSnapshotReady          Reason = "SnapshotReady"
	ReasonSnapshotFailed         Reason = "SnapshotCreationFailed"
	ReasonSnapshotInvalid        Reason = "SnapshotValidationError"
	ReasonSnapshotClassFailed    Reason = "GetSnapshotClassFailed"
	ReasonSnapshotDefaultFailed  Reason = "SetDefaultSnapshotClassFailed"
	ReasonSnapshotDriverMismatch Reason = "SnapshotDriverMismatch"
	ReasonSnapshotDeletePending  Reason = "SnapshotDeletePending"
	ReasonSnapshotDeleteFailed   Reason = "SnapshotDeleteError"
	ReasonSnapshotCheckFailed    Reason = "SnapshotContentCheckandUpdateFailed"
	ReasonSnapshotMisbound       Reason = "SnapshotMisbound"
	ReasonContentFailed          Reason = "SnapshotContentCreationFailed"
	ReasonContentWriteFailed     Reason = "CreateSnapshotContentFailed"
	ReasonContentMissing         Reason = "SnapshotContentMissing"
	ReasonContentMismatch        Reason = "SnapshotContentMismatch"
	ReasonContentMisbound        Reason = "SnapshotContentMisbound"
	ReasonContentBindFailed      Reason = "SnapshotBindFailed"
	ReasonContentHandleSet       Reason = "SnapshotHandleSet"
	ReasonContentInvalid         Reason = "ContentValidationError"
	ReasonGroupPending           Reason = "CreatingGroupSnapshot"
	ReasonGroupCreated           Reason = "GroupSnapshotCreated"
	ReasonGroupReady             Reason = "GroupSnapshotReady"
	ReasonGroupFailed            Reason = "GroupSnapshotCreationFailed"
	ReasonGroupInvalid           Reason = "GroupSnapshotValidationError"
	ReasonGroupClassFailed       Reason = "GetGroupSnapshotClassFailed"
	ReasonGroupDefaultFailed     Reason = "SetDefaultGroupSnapshotClassFailed"
	ReasonGroupDeleteFailed      Reason = "GroupSnapshotDeleteError"
	ReasonGroupCheckFailed       Reason = "GroupSnapshotContentCheckandUpdateFailed"
	ReasonGroupMisbound          Reason = "GroupSnapshotMisbound"
	ReasonGroupMemberFailed      Reason = "GroupSnapshotMemberFailed"
	ReasonGroupContentFailed     Reason = "GroupSnapshotContentCreationFailed"
	ReasonGroupContentWrite      Reason = "CreateGroupSnapshotContentFailed"
	ReasonGroupContentMissing    Reason = "GroupSnapshotContentMissing"
	ReasonGroupContentMismatch   Reason = "GroupSnapshotContentMismatch"
	ReasonGroupContentMisbound   Reason = "GroupSnapshotContentMisbound"
	ReasonGroupContentInvalid    Reason = "GroupContentValidationError"
	ReasonGroupBindFailed        Reason = "GroupSnapshotBindFailed"
)

// Reasons for the store of the control plane itself.
const (
	ReasonRoomLeft     Reason = "RoomLeft"
	ReasonDatabaseFull Reason = "DatabaseFull"
	ReasonDiskFull     Reason = "DiskFull"
	ReasonNoQuorum     Reason = "StoreWithoutQuorum"
)

// Reasons for FlexVolume drivers and their mounts.
const (
	ReasonFlexDriverProbing  Reason = "FlexDriverProbing"
	ReasonFlexDriverReady    Reason = "FlexDriverReady"
	ReasonFlexDriverBroken   Reason = "FlexDriverBroken"
	ReasonFlexDriverRefused  Reason = "FlexDriverRefused"
	ReasonFlexDriverRemoved  Reason = "FlexDriverRemoved"
	ReasonFlexMounted        Reason = "FlexMounted"
	ReasonFlexMountFailed    Reason = "FlexMountFailed"
	ReasonFlexNothingMounted Reason = "FlexNothingMounted"
	ReasonFlexNotSupported   Reason = "FlexNotSupported"
	ReasonFlexUnmounted      Reason = "FlexUnmounted"
	ReasonFlexUnmountFailed  Reason = "FlexUnmountFailed"
	ReasonFlexAllowed        Reason = "FlexAllowed"
	ReasonFlexNotAllowed     Reason = "FlexNotAllowed"
)

// Reasons for moving a volume from a Flex plugin to the bridge.
const (
	ReasonMigrating        Reason = "Migrating"
	ReasonMigrated         Reason = "Migrated"
	ReasonMigrationWaits   Reason = "MigrationWaits"
	ReasonMigrationRefused Reason = "MigrationRefused"
	ReasonMigrationUndone  Reason = "MigrationUndone"
)
