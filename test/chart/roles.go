package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/internal/sidecar/snapshotmetadata"
	"volplane.dev/volplane/internal/volume"
)

// elects is the condition of leader election.
const elects = `include "volplane.elects" .`

// rule is a rule of a role, with its elements and the controllers that need them.
type rule struct {
	group, resource string
	verbs, names    []need
}

// need is a verb or a name, and the controllers that need it.
type need struct {
	what string
	by   needers
}

// needers maps controllers to whether they need something only if a leader is elected.
type needers map[string]bool

// note adds a controller.
func (n needers) note(controller string, leads bool) {
	if only, known := n[controller]; !known || only {
		n[controller] = leads
	}
}

// condition returns the conditions under which a controller needs it, or what serves changed blocks beside them.
func (n needers) condition() []string {
	var all, out []string
	for _, c := range app.ClusterControllers() {
		only, needs := n[c]
		switch runs := fmt.Sprintf("has %q .Values.controllers", c); {
		case needs && only:
			all = append(all, "and ("+elects+") ("+runs+")")
		case needs:
			all, out = append(all, runs), append(out, runs)
		}
	}
	var beside []string
	if _, needs := n[app.MetadataRole]; needs {
		beside = []string{servesBlocks}
	}
	switch {
	case len(out) == len(app.ClusterControllers()):
		return nil
	case len(all) == len(app.ClusterControllers()):
		// One of them runs in any case.
		all = append(out, elects)
	}
	return append(all, beside...)
}

// addRoles adds a template with the roles and bindings. The elements of a rule depend on the controllers that the
// values name.
func addRoles(_ string, out map[string][]byte) error {
	o := options(manifest.Deployment)
	o.WithoutRBAC, o.WithoutNodes, o.WithoutCSIDriver, o.WithoutAccounts = false, true, true, true
	rights := app.DriverControllerRights(app.ClusterControllers(), wordDriver, wordNamespace, true, false)
	o.RBAC = kube.Roles("word-role", rights, kube.ServiceAccount(wordNamespace, "word-account"))
	objects, err := trees(o)
	if err != nil {
		return err
	}
	t := text{words: sentinels()}
	t.put(0, "{{- if .Values.rbac.create }}")
	rules := map[string][]*node{"ClusterRole": rulesOf(""), "Role": rulesOf(wordNamespace)}
	rules["Role"] = append(rules["Role"], secrets("and ("+ownSecrets+") ("+secretReaders()+")",
		"get ("+secretsIn+") .Release.Namespace"))
	rules["ClusterRole"] = append(rules["ClusterRole"],
		secrets(`and (has "*" .Values.rbac.secrets) (`+secretReaders()+")", ""), grants())
	for _, n := range objects {
		kind := n.field("kind").scalar.(string)
		if n.field("rules") != nil {
			n.field("rules").elements = rules[kind]
		} else if n.field("roleRef") == nil {
			continue
		}
		namespaced := n.field("metadata").field("namespace") != nil
		if namespaced {
			t.put(0, "{{- if "+anyOf(conditions(rules["Role"]))+" }}")
		}
		t.put(0, "---")
		t.object(n)
		if namespaced {
			t.put(0, "{{- end }}")
			t.elsewhere(n)
		}
	}
	t.put(0, "{{- end }}")
	out["templates/roles.yaml"] = []byte(t.String())
	return nil
}

const (
	// secretsIn are the names of the Secrets that may be read, by namespace.
	secretsIn  = `include "volplane.secrets" . | fromJson`
	ownSecrets = `hasKey (` + secretsIn + `) .Release.Namespace`
)

// elsewhere writes a Role or its binding for each other namespace with Secrets that may be read.
func (t *text) elsewhere(n *node) {
	t.put(0, "{{- range $namespace, $names := "+secretsIn+" }}{{- with $ }}")
	t.put(0, "{{- if and (ne $namespace .Release.Namespace) ("+secretReaders()+") }}")
	t.put(0, "---")
	n.field("metadata").field("namespace").scalar = expression("quote $namespace")
	if n.field("rules") != nil {
		n.field("rules").elements = []*node{secrets("", "$names")}
	}
	t.object(n)
	t.put(0, "{{- end }}")
	t.put(0, "{{- end }}{{- end }}")
}

// secretReaders returns the condition that something runs which needs Secrets.
func secretReaders() string {
	of := needers{}
	for _, c := range app.ClusterControllers() {
		if slices.ContainsFunc(app.DriverControllerRights([]string{c}, wordDriver, wordNamespace, false, false),
			func(a kube.Access) bool { return a.Group == "" && a.Resource == "secrets" }) {
			of.note(c, false)
		}
	}
	of.note(app.MetadataRole, false)
	return cmp.Or(anyOf(of.condition()), "true")
}

// secrets returns the rule for Secrets, with the names from an expression; empty means all Secrets.
func secrets(condition, names string) *node {
	n := &node{fields: []*node{{key: "apiGroups", elements: []*node{{scalar: ""}}}}}
	if condition != "" {
		n.when = []string{condition}
	}
	if names != "" {
		n.fields = append(n.fields, &node{key: "resourceNames", scalar: expression("toJson (" + names + ")")})
	}
	n.fields = append(n.fields, &node{key: "resources", elements: []*node{{scalar: "secrets"}}},
		&node{key: "verbs", elements: []*node{{scalar: "get"}}})
	return n
}

// grants returns the rule for ReferenceGrants, which are read if a feature gate is on.
func grants() *node {
	return &node{
		when: []string{`and (has "provisioner" .Values.controllers) ` +
			`(contains "CrossNamespaceVolumeDataSource=true" (join "," .Values.controller.extraArgs))`},
		fields: []*node{
			{key: "apiGroups", elements: []*node{{scalar: volume.GroupGateway}}},
			{key: "resources", elements: []*node{{scalar: volume.ResourceGrants}}},
			{key: "verbs", elements: []*node{{scalar: "list"}}},
		},
	}
}

// conditions returns under which conditions one of the parts is rendered.
func conditions(all []*node) []string {
	var out []string
	for _, n := range all {
		out = append(out, n.condition())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// onNodes is the condition of controllers that work on each node.
const onNodes = ".Values.nodeDeployment"

// rulesOf returns the rules of the roles in a namespace, except that for Secrets. Some differ on each node.
func rulesOf(namespace string) []*node {
	usual, others := ruleNodes(namespace, false), ruleNodes(namespace, true)
	among := func(n *node, all []*node) bool {
		return slices.ContainsFunc(all, func(o *node) bool { return o.text() == n.text() })
	}
	out := slices.Clone(usual)
	for _, n := range others {
		if !among(n, usual) {
			n.when = []string{allOf(onNodes, n.condition())}
			out = append(out, n)
		}
	}
	for _, n := range usual {
		if !among(n, others) {
			n.unless = []string{onNodes}
		}
	}
	return out
}

// ruleNodes returns these rules, for controllers that work on each node or not.
func ruleNodes(namespace string, onNodes bool) []*node {
	rules := map[string]*rule{}
	for _, c := range app.ClusterControllers() {
		for _, leads := range []bool{false, true} {
			rights := app.DriverControllerRights([]string{c}, wordDriver, wordNamespace, leads, onNodes)
			addAll(rules, rights, namespace, c, leads)
		}
	}
	addAll(rules, snapshotmetadata.Rights(), namespace, app.MetadataRole, false)
	var out []*node
	for _, key := range slices.Sorted(maps.Keys(rules)) {
		out = append(out, rules[key].node())
	}
	return out
}

// addAll notes that a controller needs the rules for rights in a namespace.
func addAll(rules map[string]*rule, rights []kube.Access, namespace, controller string, leads bool) {
	for _, object := range kube.Roles("", rights, rbacv1.Subject{}) {
		for _, r := range rulesIn(object, namespace) {
			add(rules, r, controller, leads)
		}
	}
}

// rulesIn returns the rules of an object if it is a role in the namespace.
func rulesIn(object any, namespace string) []rbacv1.PolicyRule {
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		if namespace == "" {
			return o.Rules
		}
	case *rbacv1.Role:
		if namespace == o.Namespace {
			return o.Rules
		}
	}
	return nil
}

// add notes that a controller needs a rule, perhaps only with leader election. Rules with names are the same one if
// their verbs are.
func add(rules map[string]*rule, r rbacv1.PolicyRule, controller string, leads bool) {
	if r.APIGroups[0] == "" && r.Resources[0] == "secrets" {
		return
	}
	key := r.APIGroups[0] + " " + r.Resources[0]
	if len(r.ResourceNames) > 0 {
		key += " " + strings.Join(r.Verbs, " ")
	}
	if rules[key] == nil {
		rules[key] = &rule{group: r.APIGroups[0], resource: r.Resources[0]}
	}
	rules[key].verbs = needed(rules[key].verbs, r.Verbs, controller, leads)
	rules[key].names = needed(rules[key].names, r.ResourceNames, controller, leads)
}

// needed notes that a controller needs each of these verbs or names.
func needed(all []need, of []string, controller string, leads bool) []need {
	for _, what := range of {
		i := slices.IndexFunc(all, func(n need) bool { return n.what == what })
		if i < 0 {
			i, all = len(all), append(all, need{what: what, by: needers{}})
		}
		all[i].by.note(controller, leads)
	}
	return all
}

// node returns the rule with the conditions of its parts.
func (r *rule) node() *node {
	all := needers{}
	for _, v := range r.verbs {
		for c, leads := range v.by {
			all.note(c, leads)
		}
	}
	n := &node{when: all.condition(), fields: []*node{{key: "apiGroups", elements: []*node{{scalar: r.group}}}}}
	if len(r.names) > 0 {
		n.fields = append(n.fields, &node{key: "resourceNames", elements: parts(r.names, all)})
	}
	n.fields = append(n.fields, &node{key: "resources", elements: []*node{{scalar: r.resource}}},
		&node{key: "verbs", elements: parts(r.verbs, all)})
	return n
}

// parts returns the verbs or the names of a rule that exists for some controllers.
func parts(of []need, all needers) []*node {
	var out []*node
	for _, n := range of {
		element := &node{scalar: n.what}
		if !maps.Equal(n.by, all) {
			element.when = n.by.condition()
		}
		out = append(out, element)
	}
	return out
}
