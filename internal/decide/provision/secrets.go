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

// ErrParameters says that a class's parameters are invalid.
var ErrParameters = errors.New("class parameters are not usable")

const (
	keyPrefix = "csi.storage.k8s.io/"
	keyFSType = keyPrefix + "fstype"
	// oldFSType is the older spelling, case-insensitive. The driver gets this parameter, too.
	oldFSType = "fstype"
)

// Secrets are the references to Secrets that result from a class's templates. Provision is used for
// CreateVolume and DeleteVolume; the others are written to the volume object.
type Secrets struct {
	Provision  *corev1.SecretReference `json:"provision,omitempty"`
	Publish    *corev1.SecretReference `json:"publish,omitempty"`
	Stage      *corev1.SecretReference `json:"stage,omitempty"`
	Node       *corev1.SecretReference `json:"node,omitempty"`
	Expand     *corev1.SecretReference `json:"expand,omitempty"`
	NodeExpand *corev1.SecretReference `json:"nodeExpand,omitempty"`
	Modify     *corev1.SecretReference `json:"modify,omitempty"`
}

// purpose is a call, or a group of calls, for which a class may name a Secret.
type purpose struct {
	// name is the purpose in today's keys.
	name string
	// old is the prefix of the older keys, or ""; the driver gets those parameters, too (S1-116).
	old string
	// of returns the field of the reference.
	of func(*Secrets) **corev1.SecretReference
}

// purposes returns all purposes, always in the same order, so that a class always gives the same
// error.
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

// keys returns today's keys of the Secret's name and namespace.
func (p purpose) keys() (name, namespace string) {
	return keyPrefix + p.name + "-secret-name", keyPrefix + p.name + "-secret-namespace"
}

// secrets resolves the templates. A namespace must not depend on the claim's name and annotations,
// which the claim's user controls.
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

// templates returns the templates of a class for a purpose, from today's keys, the older ones, or
// those for all purposes; "" if it has none.
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
	namespace, err := Expand(namespace, tokens)
	if err != nil {
		return nil, fmt.Errorf("%w: namespace of the %s secret: %w", ErrParameters, purpose, err)
	}
	tokens["pvc.name"] = claim.Name
	for k, v := range claim.Annotations {
		tokens["pvc.annotations['"+k+"']"] = v
	}
	if name, err = Expand(name, tokens); err != nil {
		return nil, fmt.Errorf("%w: name of the %s secret: %w", ErrParameters, purpose, err)
	}
	if p := slices.Concat(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)); len(p) > 0 {
		return nil, fmt.Errorf("%w: %s secret: %s", ErrParameters, purpose, p[0])
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// Expand replaces each ${token} of a template for the name or namespace of a Secret. A token without braces is refused
// like an unknown one, because it would be ambiguous.
func Expand(template string, tokens map[string]string) (string, error) {
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

// driverParameters returns the parameters of a class for the driver: all without the prefix of
// Kubernetes (S1-026).
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

// fsType returns the filesystem type that a class names; "" leaves it to the driver.
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
