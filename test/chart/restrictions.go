package main

import "volplane.dev/volplane/internal/sidecar/manifest"

// restrictions returns the schemas that do not follow from the default values, by their paths.
func restrictions() map[string]map[string]any {
	out := map[string]map[string]any{
		"driver.name": matching(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`), "driver.image.repository": matching(`.`),
		"image.repository": matching(`.`), "kubeletDir": matching(`^(/[^/]+)+$`), "socketDir": matching(`^(/[^/]+)*$`),
		"fullnameOverride": matching(`^([a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?)?$`),
		"shape":            {"enum": manifest.Shapes()},
		"controllers": {"type": "array", "minItems": 1, "uniqueItems": true, "items": map[string]any{"enum": []string{
			"provisioner", "capacity", "attacher", "resizer", "modifier", "snapshotter", "group-snapshotter", "health",
			"snapshot-controller",
		}}},
		"driver.args": texts(`.`), "controller.extraArgs": texts(`.`),
		"rbac.secrets":           texts(`^(\*|[^/*]+/[^/*]+)$`),
		"controller.driver.args": texts(`.`), "node.driver.args": texts(`.`),
		"controller.replicas": {"type": "integer", "minimum": 1},
		"storageClasses":      {"type": "array", "items": storageClass()},
		"node.updateStrategy": {"type": "object"},
		"csiDriver.volumeLifecycleModes": {"type": []string{"array", "null"}, "items": map[string]any{
			"enum": []string{"Persistent", "Ephemeral"},
		}},
		"csiDriver.fsGroupPolicy": {"enum": []any{"ReadWriteOnceWithFSType", "File", "None", nil}},
		"csiDriver.tokenRequests": {
			"type": []string{"array", "null"}, "items": map[string]any{"type": "object"},
		},
		"csiDriver.nodeAllocatableUpdatePeriodSeconds": {"type": []string{"integer", "null"}, "minimum": 10},
	}
	for _, image := range []string{"driver.image", "image"} {
		out[image+".pullPolicy"] = map[string]any{"enum": []string{"", "IfNotPresent", "Always", "Never"}}
		out[image+".digest"] = matching(`^(sha256:[0-9a-f]{64})?$`)
	}
	for _, field := range []string{
		"attachRequired", "podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount",
		"serviceAccountTokenInSecrets", "preventPodSchedulingIfMissing",
	} {
		out["csiDriver."+field] = map[string]any{"type": []string{"boolean", "null"}}
	}
	port := map[string]any{"type": "integer", "minimum": 1, "maximum": 65535}
	for _, at := range []string{"metrics.port", "controller.livenessProbe.healthPort", "node.livenessProbe.healthPort"} {
		out[at] = port
	}
	for _, at := range []string{
		"controller.resources", "node.registrar.resources", "livenessProbe.resources", "controller.driver.resources",
		"node.driver.resources", "changedBlocks.resources",
	} {
		out[at] = map[string]any{
			"type": "object", "additionalProperties": false, "properties": map[string]any{
				"requests": map[string]any{"type": "object"}, "limits": map[string]any{"type": "object"},
				"claims": map[string]any{"type": "array"},
			},
		}
	}
	return out
}

// storageClass returns the schema of a class: a name, annotations, and the fields of a StorageClass without its
// provisioner.
func storageClass() map[string]any {
	text := map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	return map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"name"},
		"properties": map[string]any{
			"name": matching(`.`), "annotations": text, "parameters": text, "mountOptions": texts(`.`),
			"reclaimPolicy":        map[string]any{"enum": []string{"Delete", "Retain"}},
			"volumeBindingMode":    map[string]any{"enum": []string{"Immediate", "WaitForFirstConsumer"}},
			"allowVolumeExpansion": map[string]any{"type": "boolean"},
			"allowedTopologies":    map[string]any{"type": "array", "items": map[string]any{"type": "object"}},
		},
	}
}

func matching(pattern string) map[string]any {
	return map[string]any{"type": "string", "pattern": pattern}
}

func texts(pattern string) map[string]any {
	return map[string]any{"type": "array", "items": matching(pattern)}
}
