package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// nameLimit is the length of the longest name of a volume.
	nameLimit = 1024
	// idLimit is the length of the longest ID: engines have 64 characters.
	idLimit = 128
	// hashLength is the length of the hash in a claim's name.
	hashLength = 8
)

// checkName allows what docker and podman do, but for docker's least length of two.
func checkName(name string) error {
	signs := func(r rune) bool { return !isPlain(r) && !strings.ContainsRune("_.-", r) }
	if name == "" || len(name) > nameLimit || !isPlain(rune(name[0])) || strings.ContainsFunc(name, signs) {
		return fmt.Errorf("%.80q is not a name of a volume: letters, digits, _, . and - are allowed, at most %d", name,
			nameLimit)
	}
	return nil
}

// isPlain says whether a character is a letter or a digit of ASCII.
func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// claimName returns the name of the claim of a volume: the same if a claim may have it, else a readable part of it and
// a hash. Two volumes whose claims would have the same name are distinguished by the claim's annotation.
func claimName(name string) string {
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	readable := strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !isPlain(r) }), "-")
	readable = readable[:min(len(readable), validation.DNS1123SubdomainMaxLength-hashLength-1)]
	return strings.TrimRight(readable, "-") + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// nameOf returns the name of the volume of a claim: the claim's name unless docker has created it under another
// one. Any user may have written the annotation, so it counts only if docker would have created this claim for it.
func nameOf(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[annName]; ok && checkName(name) == nil && claimName(name) == claim.Name {
		return name
	}
	return claim.Name
}

// podName returns the name of the Pod of a claim on a node.
func podName(claim, node string) string {
	sum := sha256.Sum256([]byte(claim + "\x00" + node))
	return "docker-" + hex.EncodeToString(sum[:5])
}
