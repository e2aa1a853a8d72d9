package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/sidecar/manifest"
)

// files are the parts of the chart that are not objects of the manifests.
//
//go:embed all:files
var files embed.FS

// chart returns the files of the chart, given the top of the repository.
func chart(root string) (map[string][]byte, error) {
	out := map[string][]byte{}
	err := fs.WalkDir(files, "files", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		out[strings.TrimPrefix(name, "files/")] = content
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is embedded: %w", err)
	}
	schema, err := schemaOf(out["values.yaml"])
	if err != nil {
		return nil, err
	}
	out["values.schema.json"] = schema
	for _, add := range []func(string, map[string][]byte) error{addWorkloads, addRoles, addDefinitions, addRules} {
		if err := add(root, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// written are the conditions under which each kind of object is rendered, in addition to the shape.
func written() map[string]string {
	return map[string]string{
		"ServiceAccount": ".Values.serviceAccount.create", "CSIDriver": ".Values.csiDriver.create",
		"PodDisruptionBudget": ".Values.controller.podDisruptionBudget.enabled", "DaemonSet": ".Values.node.enabled",
	}
}

// addWorkloads adds a template for each shape.
func addWorkloads(_ string, out map[string][]byte) error {
	for _, shape := range manifest.Shapes() {
		objects, err := shaped(shape)
		if err != nil {
			return fmt.Errorf("%s: %w", shape, err)
		}
		t := text{words: sentinels()}
		t.put(0, fmt.Sprintf("{{- if eq .Values.shape %q }}", shape))
		for _, n := range objects {
			kind := n.field("kind").scalar.(string)
			switch kind {
			case "CSIDriver":
				csiDriver(n)
			case "SnapshotMetadataService":
				authority(n)
			}
			if condition := written()[kind]; condition != "" {
				if kind == "ServiceAccount" && component(n) == "node" {
					// It is the account of the DaemonSet.
					condition = "and .Values.node.enabled " + condition
				}
				n.when = []string{condition}
			}
			t.conditional(n, func() {
				t.put(0, "---")
				t.object(n)
			})
		}
		t.put(0, "{{- end }}")
		out["templates/"+shape+".yaml"] = []byte(t.String())
	}
	return nil
}

// shaped returns the objects of a shape, with all its variants.
func shaped(shape string) ([]*node, error) {
	objects, err := trees(options(shape))
	if err != nil {
		return nil, err
	}
	for _, v := range variants(shape) {
		o := options(shape)
		v.change(&o)
		others, err := trees(o)
		if err != nil {
			return nil, err
		}
		for i, other := range others {
			if i == len(objects) {
				other.when = []string{v.condition}
				objects = append(objects, other)
			} else if err := objects[i].overlay(other, v.condition); err != nil {
				return nil, err
			}
		}
	}
	return objects, nil
}

// component returns the part of the manifests that an object belongs to.
func component(n *node) any {
	if of := n.field("metadata").field("labels").field("app.kubernetes.io/component"); of != nil {
		return of.scalar
	}
	return ""
}

// field returns a field of an object; nil if there is none.
func (n *node) field(key string) *node {
	for _, f := range n.fields {
		if f.key == key {
			return f
		}
	}
	return nil
}

// trees returns the objects for options.
func trees(o manifest.Options) ([]*node, error) {
	objects, err := manifest.Objects(o)
	if err != nil {
		return nil, err
	}
	printed, err := manifest.YAML(objects)
	if err != nil {
		return nil, err
	}
	const flag = "--controllers="
	printed = bytes.ReplaceAll(printed, []byte(flag+strings.Join(o.Controllers, ",")), []byte(flag+"word-controllers"))
	var out []*node
	for document := range strings.SplitSeq(strings.TrimPrefix(string(printed), "---\n"), "---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return nil, fmt.Errorf("parse manifests: %w", err)
		}
		n, rest := tree("", object)
		if n == nil || rest.expr != "" {
			return nil, fmt.Errorf("%s is not in an object", rest.expr)
		}
		out = append(out, n)
	}
	return out, nil
}

// addDefinitions adds the custom resources of snapshots, which stay when the release is uninstalled. That of changed
// blocks is not among them: a release cannot install it with an object of its kind, which the chart has.
func addDefinitions(root string, out map[string][]byte) error {
	names, err := filepath.Glob(filepath.Join(root, "standalone", "apiserver", "crds", "*snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(names) == 0 {
		return errors.Join(err, errors.New("there are no definitions of snapshots"))
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read a definition: %w", err)
		}
		const annotations = "\n  annotations:\n"
		if !strings.Contains(string(content), annotations) {
			return fmt.Errorf("%s has no annotations", name)
		}
		out[path.Join("crd", filepath.Base(name))] = []byte(strings.Replace(string(content), annotations,
			annotations+"    helm.sh/resource-policy: keep\n", 1))
	}
	return nil
}

// addRules adds the alerts that the repository has for Prometheus, as far as they can fire in a cluster.
func addRules(root string, out map[string][]byte) error {
	content, err := os.ReadFile(filepath.Join(root, "deploy", "prometheus", "volplane.rules.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		delete(out, "templates/prometheusrule.yaml")
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the alerts: %w", err)
	}
	out["prometheus/volplane.rules.yaml"] = clusterRules(content)
	return nil
}

// clusterRules returns the rule file without alerts about metrics that only volplaned serves, which no cluster has.
func clusterRules(file []byte) []byte {
	const begin = "      - alert: "
	var plane []string
	for _, f := range observe.Families() {
		if f.From == observe.FromPlane {
			plane = append(plane, f.Name)
		}
	}
	names := regexp.MustCompile(`\b(` + strings.Join(plane, "|") + `)\b`)
	head, rest, _ := strings.Cut(string(file), begin)
	for rule := range strings.SplitSeq(rest, begin) {
		if !names.MatchString(rule) {
			head += begin + rule
		}
	}
	return []byte(head)
}

// schemaOf returns the JSON schema for values like the default ones: each has the type of its default, and no others
// are allowed. Restrictions that a default does not show are in restrictions.
func schemaOf(values []byte) ([]byte, error) {
	var defaults map[string]any
	if err := yaml.Unmarshal(values, &defaults); err != nil {
		return nil, fmt.Errorf("read the default values: %w", err)
	}
	known := restrictions()
	schema := schemaAt("", defaults, known)
	if len(known) > 0 {
		return nil, fmt.Errorf("there are no values for the restrictions %v", known)
	}
	schema["$schema"] = "https://json-schema.org/draft-07/schema#"
	out, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return append(out, '\n'), nil
}

// schemaAt returns the schema of a value at a path, and removes its restriction from the known ones.
func schemaAt(at string, v any, known map[string]map[string]any) map[string]any {
	if r, is := known[at]; is {
		delete(known, at)
		return r
	}
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return map[string]any{"type": "object"}
		}
		properties := map[string]any{}
		for name, below := range v {
			properties[name] = schemaAt(strings.TrimPrefix(at+"."+name, "."), below, known)
		}
		return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	case []any:
		return map[string]any{"type": "array"}
	case bool:
		return map[string]any{"type": "boolean"}
	case float64:
		return map[string]any{"type": "integer", "minimum": 0}
	}
	return map[string]any{"type": "string"}
}
