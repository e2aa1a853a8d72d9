// Package crds contains the custom resources of every server: those of snapshots and of groups of snapshots, as
// Kubernetes' snapshot controller installs them, and with the fields of KEP-5943; and the one by which backup programs
// find who serves changed blocks, as external-snapshot-metadata 1.1 has it in a module that Go's proxies lack.
package crds

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

//go:generate sh -c "cp $(go list -m -f '{{.Dir}}' github.com/kubernetes-csi/external-snapshotter/client/v8)/config/crd/*snapshot.storage.k8s.io_*.yaml . && chmod 0644 *.yaml"

//go:embed *.yaml
var files embed.FS

// All returns the definitions.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	var out []*apiextensionsv1.CustomResourceDefinition
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		addTopology(crd)
		out = append(out, crd)
	}
	return out, nil
}

// addTopology adds the fields of KEP-5943 to the kinds that have them: the places in which a snapshot can be used, and
// those in which snapshots of a class must be usable.
func addTopology(crd *apiextensionsv1.CustomResourceDefinition) {
	for i := range crd.Spec.Versions {
		fields := crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties
		switch crd.Spec.Names.Kind {
		case "VolumeSnapshotContent":
			terms := topologyTerms("The topologies from which volumes that are created from the snapshot are accessible; " +
				"all, if empty.")
			terms.XValidations = apiextensionsv1.ValidationRules{
				{Rule: "self == oldSelf", Message: "nodeAffinity is immutable"},
			}
			fields["spec"].Properties["nodeAffinity"] = terms
		case "VolumeSnapshotClass":
			fields["allowedTopologies"] = topologyTerms(
				"The places from which snapshots of the class are to be usable; the driver chooses, if empty.")
		}
	}
}

// topologyTerms returns the schema of a list of TopologySelectorTerms.
func topologyTerms(description string) apiextensionsv1.JSONSchemaProps {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	terms := listOf(apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"matchLabelExpressions": listOf(apiextensionsv1.JSONSchemaProps{
				Type: "object", Required: []string{"key", "values"},
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"key": text, "values": listOf(text)},
			}),
		},
	})
	terms.Description, terms.MaxItems = description, ptr.To[int64](1000)
	return terms
}

// listOf returns the schema of a list, which is replaced as a whole.
func listOf(item apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{
		Type: "array", XListType: ptr.To("atomic"), Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &item},
	}
}
