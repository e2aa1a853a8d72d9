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

// purposes are what a class may name a secret for; the first is needed here,
// the others are only written into the volume.
const (
	purposeProvision  = "provisioner"
	purposePublish    = "controller-publish"
	purposeStage      = "node-stage"
	purposeNode       = "node-publish"
	purposeExpand     = "controller-expand"
	purposeNodeExpand = "node-expand"
)

// Secrets are the references that a class's templates resolve to.
type Secrets struct {
	Provision  *corev1.SecretReference `json:"provision,omitempty"`
	Publish    *corev1.SecretReference `json:"publish,omitempty"`
	Stage      *corev1.SecretReference `json:"stage,omitempty"`
	Node       *corev1.SecretReference `json:"node,omitempty"`
	Expand     *corev1.SecretReference `json:"expand,omitempty"`
	NodeExpand *corev1.SecretReference `json:"nodeExpand,omitempty"`
}

// secrets resolves the templates. The namespace may not depend on the claim's
// name or annotations, which are under the claim's user's control.
func secrets(parameters map[string]string, claim *corev1.PersistentVolumeClaim, pv string) (Secrets, error) {
	var out Secrets
	// In order, so that the same class always gives the same complaint.
	for _, one := range []struct {
		purpose string
		into    **corev1.SecretReference
	}{
		{purposeProvision, &out.Provision},
		{purposePublish, &out.Publish},
		{purposeStage, &out.Stage},
		{purposeNode, &out.Node},
		{purposeExpand, &out.Expand},
		{purposeNodeExpand, &out.NodeExpand},
	} {
		ref, err := secret(parameters, one.purpose, claim, pv)
		if err != nil {
			return Secrets{}, err
		}
		*one.into = ref
	}
	return out, nil
}

func secret(parameters map[string]string, purpose string, claim *corev1.PersistentVolumeClaim, pv string) (*corev1.SecretReference, error) {
	name, hasName := parameters[keyPrefix+purpose+"-secret-name"]
	namespace, hasNamespace := parameters[keyPrefix+purpose+"-secret-namespace"]
	if !hasName && !hasNamespace {
		name, hasName = parameters[keyPrefix+"secret-name"]
		namespace, hasNamespace = parameters[keyPrefix+"secret-namespace"]
	}
	switch {
	case !hasName && !hasNamespace:
		return nil, nil
	case name == "" || namespace == "":
		return nil, fmt.Errorf("%w: the %s secret needs both a name and a namespace", ErrParameters, purpose)
	}
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
	for _, p := range []string{purposeProvision, purposePublish, purposeStage, purposeNode, purposeExpand, purposeNodeExpand} {
		known[keyPrefix+p+"-secret-name"], known[keyPrefix+p+"-secret-namespace"] = true, true
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
