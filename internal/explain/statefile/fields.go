package statefile

import "strings"

// treatment is how a field is kept.
type treatment int

const (
	// leftOut is a field that no explanation reads.
	leftOut treatment = iota
	// plain is a name, a state, a number or a time, and is kept as it is.
	plain
	// prose is what a program or a user has written; secrets are replaced in it.
	prose
	// attributes are what a driver is given: a value is hidden if its name promises a secret.
	attributes
)

// fields are the treatments of the fields of one kind, by their paths. A field has the treatment of the longest path
// that leads to it, so that what is not named is left out. Metadata are not among them.
type fields map[string]treatment

// keep returns fields from lines "PATH: FIELD…", in which "~" follows a field of prose, and "=" one of attributes.
func keep(lines ...string) fields {
	out := fields{}
	for _, line := range lines {
		path, names, _ := strings.Cut(line, ":")
		for _, name := range strings.Fields(names) {
			how := plain
			if bare, ok := strings.CutSuffix(name, "~"); ok {
				name, how = bare, prose
			} else if bare, ok := strings.CutSuffix(name, "="); ok {
				name, how = bare, attributes
			}
			if path != "" {
				name = path + "." + name
			}
			out[name] = how
		}
	}
	return out
}

func namespaceFields() fields { return keep("status: phase conditions conditions.message~") }

func claimFields() fields {
	return keep(": spec status", "status.conditions: message~", "status.healthStatus.healthConditions: reason~ message~")
}

// source leaves out the kinds of volumes that volplane does not serve, and the references to Secrets.
func source(path string) []string {
	return []string{
		path + ": capacity accessModes claimRef persistentVolumeReclaimPolicy storageClassName mountOptions~",
		path + ": volumeMode nodeAffinity volumeAttributesClassName",
		path + ".csi: driver volumeHandle~ readOnly fsType volumeAttributes=",
		path + ".flexVolume: driver readOnly fsType options=",
	}
}

func volumeFields() fields {
	return keep(append(source("spec"), "status: phase message~ reason~ lastPhaseTransitionTime")...)
}

func attachmentFields() fields {
	return keep(append(source("spec.source.inlineVolumeSpec"), "spec: attacher nodeName source.persistentVolumeName",
		"status: attached attachmentMetadata= attachError attachError.message~ detachError detachError.message~")...)
}

// podFields keeps the volumes of a Pod that volumes are made for, the directories of the host by which a driver's Pod
// is known, its node, when it is evicted from there, and its state, and nothing of its containers but how they are.
func podFields() fields {
	lines := []string{
		"spec: nodeName tolerations",
		"spec.volumes: name persistentVolumeClaim ephemeral.volumeClaimTemplate.spec hostPath.path~",
		"spec.volumes.csi: driver readOnly fsType volumeAttributes=",
		"spec.volumes.flexVolume: driver readOnly fsType options=",
		"status: phase reason message~ startTime conditions conditions.message~ volumeHealth",
		"status.volumeHealth.healthConditions: reason~ message~",
	}
	for _, containers := range []string{"status.containerStatuses", "status.initContainerStatuses"} {
		lines = append(lines, containers+": name ready started restartCount containerID~",
			containers+".state: running waiting.reason waiting.message~",
			containers+".state.terminated: exitCode reason startedAt finishedAt")
	}
	return keep(lines...)
}

// nodeFields keeps the version, which distinguishes a kubelet from volplane's agent.
func nodeFields() fields {
	return keep("spec: unschedulable taints", "status: nodeInfo.kubeletVersion~ conditions conditions.message~",
		"status: volumesInUse~ volumesAttached~")
}

func csiNodeFields() fields {
	return keep(": spec", "status: storageHealth", "status.storageHealth.healthConditions: reason~ message~")
}

func classFields() fields {
	return keep(": provisioner parameters= reclaimPolicy mountOptions~ allowVolumeExpansion volumeBindingMode",
		": allowedTopologies")
}

func eventFields() fields {
	return keep(": involvedObject reason message~ type firstTimestamp lastTimestamp eventTime count series source",
		": reportingComponent reportingInstance")
}

// snapshotFields are those of snapshots and of groups of them.
func snapshotFields() fields {
	return keep(": spec", "status: boundVolumeSnapshotContentName boundVolumeGroupSnapshotContentName creationTime",
		"status: readyToUse restoreSize error error.message~")
}

// contentFields are those of the contents of snapshots and of groups of them.
func contentFields() fields {
	return keep(": spec",
		"spec.source: volumeHandle~ snapshotHandle~ volumeHandles~ groupSnapshotHandles~",
		"status: snapshotHandle~ volumeGroupSnapshotHandle~ creationTime restoreSize readyToUse error error.message~",
		"status.volumeSnapshotInfoList: volumeHandle~ snapshotHandle~ creationTime readyToUse restoreSize")
}

func snapshotClassFields() fields { return keep(": driver parameters= deletionPolicy") }
