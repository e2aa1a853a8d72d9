package snapshot

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

const (
	// keyPrefix begins the parameters of a class that are not for the driver.
	keyPrefix = "csi.storage.k8s.io/"
	// forTaking and forLooking are the purposes of Secrets of a class: calls that take and delete a snapshot, and
	// calls that look for one.
	forTaking, forLooking = "snapshotter", "snapshotter-list"
)

// keysOf returns the parameters that name the Secret of a purpose.
func keysOf(purpose string) (name, namespace string) {
	return keyPrefix + purpose + "-secret-name", keyPrefix + purpose + "-secret-namespace"
}

// SecretOf resolves the templates of a Secret among the parameters of a class of snapshots, or of groups of snapshots;
// nil if there are none. inName and inNamespace are what the templates may contain.
func SecretOf(
	class, purpose string, parameters, inName, inNamespace map[string]string,
) (*corev1.SecretReference, error) {
	keyName, keyNamespace := keysOf(purpose)
	name, hasName := parameters[keyName]
	namespace, hasNamespace := parameters[keyNamespace]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil
	case name == "" || namespace == "":
		return nil, fmt.Errorf("the %s secret of class %s needs both a name and a namespace", purpose, class)
	}
	namespace, err := provision.Expand(namespace, inNamespace)
	if err != nil {
		return nil, fmt.Errorf("namespace of the %s secret of class %s: %w", purpose, class, err)
	}
	if name, err = provision.Expand(name, inName); err != nil {
		return nil, fmt.Errorf("name of the %s secret of class %s: %w", purpose, class, err)
	}
	if p := slices.Concat(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)); len(p) > 0 {
		return nil, fmt.Errorf("the %s secret of class %s: %s", purpose, class, p[0])
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// tokensOf returns the values for templates of Secrets. A namespace must not depend on the snapshot's name, which a
// user chooses.
func tokensOf(content string, s *snapshotv1.VolumeSnapshot) (inName, inNamespace map[string]string) {
	inNamespace = map[string]string{"volumesnapshotcontent.name": content}
	if s != nil {
		inNamespace["volumesnapshot.namespace"] = s.Namespace
	}
	inName = maps.Clone(inNamespace)
	if s != nil {
		inName["volumesnapshot.name"] = s.Name
	}
	return inName, inNamespace
}

// secretOf resolves the templates of a class for a purpose; nil if it has none. s is nil if there is no snapshot.
func secretOf(
	class *Class, purpose, content string, s *snapshotv1.VolumeSnapshot,
) (*corev1.SecretReference, error) {
	inName, inNamespace := tokensOf(content, s)
	return SecretOf(class.Name, purpose, class.Parameters, inName, inNamespace)
}

// TakingSecret returns the Secret of a class for taking and deleting a snapshot; nil if it names none.
func TakingSecret(
	class *cluster.VolumeSnapshotClass, content string, s *snapshotv1.VolumeSnapshot,
) (*corev1.SecretReference, error) {
	return secretOf(ClassOf(class), forTaking, content, s)
}

// ParametersOf returns the parameters of a class of snapshots, or of groups of snapshots, that are for the driver, as
// JSON.
func ParametersOf(class string, parameters map[string]string) (string, error) {
	known := map[string]bool{}
	for _, purpose := range []string{
		forTaking, forLooking, "group-snapshotter", "group-snapshotter-list", "group-snapshotter-get",
	} {
		name, namespace := keysOf(purpose)
		known[name], known[namespace] = true, true
	}
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch {
		case known[key]:
		case strings.HasPrefix(key, keyPrefix):
			return "", fmt.Errorf("class %s has the unknown parameter %q", class, key)
		default:
			out[key] = parameters[key]
		}
	}
	text, _ := json.Marshal(out) // strings always marshal
	return string(text), nil
}

// topologiesOf returns, as JSON, the segments in which the snapshots of a class must be usable; "" leaves that to the
// driver.
func topologiesOf(class *Class) string {
	segments := topology.Flatten(class.Topologies)
	if len(segments) == 0 {
		return ""
	}
	text, _ := json.Marshal(segments) // strings always marshal
	return string(text)
}

// chooseDefault returns the default class of the driver of a snapshot's claim, or why there is none.
func chooseDefault(f Facts) (*cluster.VolumeSnapshotClass, string) {
	if f.Claim == nil {
		return nil, "claim " + ClaimOf(f.Snapshot) + " does not exist"
	}
	if problem := VolumeProblem(f.Claim, f.Volume); problem != "" {
		return nil, problem
	}
	return DefaultClass(f.Classes, f.Volume.Spec.CSI.Driver)
}

// DefaultClass returns the default class of a driver, or why there is none.
func DefaultClass(classes []*cluster.VolumeSnapshotClass, driver string) (*cluster.VolumeSnapshotClass, string) {
	return DefaultOf(classes, "VolumeSnapshotClass", driver,
		func(c *cluster.VolumeSnapshotClass) bool {
			return c.Annotations[volume.AnnDefaultSnapshotClass] == "true"
		},
		ClassOf)
}

// DefaultOf returns the default among the classes of a driver, or why there is none. kind is the name of their kind.
func DefaultOf[K any](
	classes []*K, kind, driver string, isDefault func(*K) bool, of func(*K) *Class,
) (class *K, problem string) {
	var found []string
	for _, c := range classes {
		if of(c).Driver == driver && isDefault(c) {
			found, class = append(found, of(c).Name), c
		}
	}
	switch len(found) {
	case 0:
		return nil, "no " + kind + " of driver " + driver + " is the default"
	case 1:
		return class, ""
	}
	slices.Sort(found)
	return nil, "driver " + driver + " has several default " + kind + "es: " + strings.Join(found, ", ")
}

// VolumeProblem returns why no snapshot can be taken of a claim that exists and its volume, or "".
func VolumeProblem(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) string {
	switch {
	case c.Status.Phase != corev1.ClaimBound || v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID:
		return "claim " + c.Name + " is not bound to a volume"
	case v.Spec.CSI == nil:
		return "volume " + v.Name + " is not a CSI volume"
	}
	return ""
}

// className returns the name of a snapshot's class.
func className(s *snapshotv1.VolumeSnapshot) string {
	return ptr.Deref(s.Spec.VolumeSnapshotClassName, "")
}
