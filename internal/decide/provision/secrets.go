package provision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ErrParameters says that a class's parameters make no sense.
var ErrParameters = errors.New("class parameters are not usable")

const (
	keyPrefix = "csi.storage.k8s.io/"
	keyFSType = keyPrefix + "fstype"
	// oldFSType is the older spelling, in any case. It is the driver's as well.
	oldFSType = "fstype"
)

// Secrets are the references that a class's templates resolve to. The first is
// needed to make the volume, the others are written into its object.
type Secrets struct {
	Provision  *corev1.SecretReference `json:"provision,omitempty"`
	Publish    *corev1.SecretReference `json:"publish,omitempty"`
	Stage      *corev1.SecretReference `json:"stage,omitempty"`
	Node       *corev1.SecretReference `json:"node,omitempty"`
	Expand     *corev1.SecretReference `json:"expand,omitempty"`
	NodeExpand *corev1.SecretReference `json:"nodeExpand,omitempty"`
	Modify     *corev1.SecretReference `json:"modify,omitempty"`
}

// purpose is what a class may name a Secret for. old is the prefix of the
// older keys, "" if there are none; those are the driver's as well (S1-116).
type purpose struct {
	name, old string
	of        func(*Secrets) **corev1.SecretReference
}

// purposes are in order, so that the same class always gives the same
// complaint.
func purposes() []purpose {
	return []purpose{
		{"provisioner", "csiProvisioner", func(s *Secrets) **corev1.SecretReference { return &s.Provision }},
		{"controller-publish", "csiControllerPublish", func(s *Secrets) **corev1.SecretReference { return &s.Publish }},
		{"node-stage", "csiNodeStage", func(s *Secrets) **corev1.SecretReference { return &s.Stage }},
		{"node-publish", "csiNodePublish", func(s *Secrets) **corev1.SecretReference { return &s.Node }},
		{"controller-expand", "", func(s *Secrets) **corev1.SecretReference { return &s.Expand }},
		{"node-expand", "", func(s *Secrets) **corev1.SecretReference { return &s.NodeExpand }},
		{"controller-modify", "", func(s *Secrets) **corev1.SecretReference { return &s.Modify }},
	}
}

// keys returns the keys of name and namespace in today's spelling.
func (p purpose) keys() (name, namespace string) {
	return keyPrefix + p.name + "-secret-name", keyPrefix + p.name + "-secret-namespace"
}

// secrets resolves the templates. The namespace may not depend on the claim's
// name or annotations, which are under the claim's user's control.
func secrets(parameters map[string]string, claim *corev1.PersistentVolumeClaim, pv string) (Secrets, error) {
	var out Secrets
	for _, one := range purposes() {
		name, namespace, err := one.templates(parameters)
		if err != nil {
			return Secrets{}, err
		}
		if name == "" {
			continue
		}
		if *one.of(&out), err = secret(name, namespace, one.name, claim, pv); err != nil {
			return Secrets{}, err
		}
	}
	return out, nil
}

// templates returns what a class says for a purpose: today's keys, the older
// ones, or those for all purposes; "" is nothing.
func (p purpose) templates(parameters map[string]string) (name, namespace string, err error) {
	keyName, keyNamespace := p.keys()
	spellings := [][2]string{{keyName, keyNamespace}}
	if p.old != "" {
		spellings = append(spellings, [2]string{p.old + "SecretName", p.old + "SecretNamespace"})
	}
	by := ""
	for _, keys := range append(spellings, [2]string{keyPrefix + "secret-name", keyPrefix + "secret-namespace"}) {
		n, hasName := parameters[keys[0]]
		ns, hasNamespace := parameters[keys[1]]
		switch {
		case !hasName && !hasNamespace:
			continue
		case by != "" && keys[0] == keyPrefix+"secret-name":
			continue
		case by != "":
			return "", "", fmt.Errorf("%w: both %q and %q are given", ErrParameters, by, keys[0])
		case n == "" || ns == "":
			return "", "", fmt.Errorf("%w: the %s secret needs both a name and a namespace", ErrParameters, p.name)
		}
		name, namespace, by = n, ns, keys[0]
	}
	return name, namespace, nil
}

// secret resolves the templates of one purpose.
func secret(
	name, namespace, purpose string, claim *corev1.PersistentVolumeClaim, pv string,
) (*corev1.SecretReference, error) {
	tokens := map[string]string{"pv.name": pv, "pvc.namespace": claim.Namespace}
	namespace, err := expand(namespace, tokens)
	if err != nil {
		return nil, fmt.Errorf("%w: namespace of the %s secret: %w", ErrParameters, purpose, err)
	}
	tokens["pvc.name"] = claim.Name
	for k, v := range claim.Annotations {
		tokens["pvc.annotations['"+k+"']"] = v
	}
	if name, err = expand(name, tokens); err != nil {
		return nil, fmt.Errorf("%w: name of the %s secret: %w", ErrParameters, purpose, err)
	}
	if p := slices.Concat(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)); len(p) > 0 {
		return nil, fmt.Errorf("%w: %s secret: %s", ErrParameters, purpose, p[0])
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// expand replaces ${token}. A token without braces, $token, would be ambiguous
// and is refused like one that is not known.
func expand(template string, tokens map[string]string) (string, error) {
	var out strings.Builder
	for rest := template; ; {
		before, after, found := strings.Cut(rest, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		token, behind, closed := strings.Cut(strings.TrimPrefix(after, "{"), "}")
		value, known := tokens[token]
		if !strings.HasPrefix(after, "{") || !closed || !known {
			return "", fmt.Errorf("unknown token in %q at %q", template, "$"+after)
		}
		out.WriteString(value)
		rest = behind
	}
}

// driverParameters are what the driver gets of a class's parameters: all but
// those with the prefix of Kubernetes' own (S1-026).
func driverParameters(all map[string]string) (map[string]string, error) {
	known := map[string]bool{keyFSType: true, keyPrefix + "secret-name": true, keyPrefix + "secret-namespace": true}
	for _, p := range purposes() {
		name, namespace := p.keys()
		known[name], known[namespace] = true, true
	}
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		switch {
		case known[k]:
		case strings.HasPrefix(k, keyPrefix):
			return nil, fmt.Errorf("%w: unknown parameter %q", ErrParameters, k)
		default:
			out[k] = all[k]
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

// fsType returns the filesystem type that a class names, "" for the driver's
// choice.
func fsType(parameters map[string]string) (string, error) {
	value, by := "", ""
	for _, k := range slices.Sorted(maps.Keys(parameters)) {
		if k != keyFSType && !strings.EqualFold(k, oldFSType) {
			continue
		}
		if by != "" {
			return "", fmt.Errorf("%w: both %q and %q are given", ErrParameters, by, k)
		}
		value, by = parameters[k], k
	}
	return value, nil
}
