package apiserver_test

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// judge fails the test if an accepted request gives the host what belongs to others, and removes what it has created.
func (m *hostModel) judge(request, verb, path string, answer []byte) {
	var got object
	if err := json.Unmarshal(answer, &got); err != nil {
		m.t.Fatal(err)
	}
	key := path + "/" + nameOf(got)
	_, others := m.theirs[key]
	switch {
	case verb == "GET":
		if others && (path == secretsPath || path == intentsPath) {
			m.t.Errorf("%s\nit reads an object of another owner", request)
		}
		return
	case others:
		m.unchanged(key)
	case verb == "DELETE":
		return
	default:
		m.written(verb, path, nameOf(got))
	}
	if m.t.Failed() {
		m.t.Log(request)
	}
	if verb == "POST" {
		m.remove(key)
	}
}

// written judges an object of the host after a request has created or changed it.
func (m *hostModel) written(verb, path, name string) {
	switch path {
	case volumesPath:
		m.volume(name)
	case capacitiesPath:
		m.capacity(name)
	case nodesPath:
		n1 := must(m.admin.CoreV1().Nodes().Get(m.t.Context(), "n1", metav1.GetOptions{}))(m.t)
		if disk := n1.Labels["disk"]; disk == "" || disk == "n2" {
			m.t.Errorf("n1 is in disk=%q", disk)
		}
	case attachmentsPath, secretsPath, contentsPath, snapshotsPath:
		if verb == "POST" || path == secretsPath {
			m.t.Error("it makes what only others make")
		}
	}
}

// unchanged fails the test unless an object of another owner is as before.
func (m *hostModel) unchanged(path string) {
	m.t.Helper()
	i := strings.LastIndexByte(path, '/')
	for _, now := range m.list(path[:i]) {
		if nameOf(now) == path[i+1:] {
			if !equality.Semantic.DeepEqual(now, m.theirs[path]) {
				m.t.Errorf("%s belongs to another owner and was changed:\n%v\n%v", path, m.theirs[path], now)
			}
			return
		}
	}
	m.t.Errorf("%s belongs to another owner and is gone", path)
}

// volume fails the test if a volume of the host refers to a claim, Secrets, data or a place that belong to others.
func (m *hostModel) volume(name string) {
	pvs := m.admin.CoreV1().PersistentVolumes()
	v := must(pvs.Get(m.t.Context(), name, metav1.GetOptions{}))(m.t)
	if v.Spec.CSI == nil || v.Spec.ClaimRef == nil {
		m.t.Fatalf("volume %s has no driver or no claim: %+v", name, v.Spec)
	}
	csi := v.Spec.CSI
	ref := v.Spec.ClaimRef
	mine := map[string][]string{ownDriver: {"mine", "mine-too"}, sharedDriver: {"lent-to-me"}}
	if ref.Namespace != "default" || !slices.Contains(mine[csi.Driver], ref.Name) {
		m.t.Errorf("volume %s of driver %s is for another owner's claim %s/%s", name, csi.Driver, ref.Namespace, ref.Name)
		return
	}
	claims := m.admin.CoreV1().PersistentVolumeClaims("default")
	claim := must(claims.Get(m.t.Context(), ref.Name, metav1.GetOptions{}))(m.t)
	if claim.UID != ref.UID {
		m.t.Errorf("volume %s is for a claim %s that is not the one that exists", name, ref.Name)
	}
	if namesSecrets(v) {
		m.t.Errorf("volume %s names Secrets that its class does not", name)
	}
	n2 := must(m.admin.CoreV1().Nodes().Get(m.t.Context(), "n2", metav1.GetOptions{}))(m.t)
	if a := v.Spec.NodeAffinity; csi.Driver == ownDriver && (a == nil || topology.Selects(a.Required, n2)) {
		m.t.Errorf("volume %s of the host's disk is accessible from n2: %+v", name, a)
	}
	m.alone(v)
}

// alone fails the test if another volume has the handle of one.
func (m *hostModel) alone(v *corev1.PersistentVolume) {
	all := must(m.admin.CoreV1().PersistentVolumes().List(m.t.Context(), metav1.ListOptions{}))(m.t)
	for _, other := range all.Items {
		o := other.Spec.CSI
		if other.Name != v.Name && o.Driver == v.Spec.CSI.Driver && o.VolumeHandle == v.Spec.CSI.VolumeHandle {
			m.t.Errorf("volume %s has the data of %s", v.Name, other.Name)
		}
	}
}

// namesSecrets says whether any call for a volume is made with a Secret.
func namesSecrets(v *corev1.PersistentVolume) bool {
	c := v.Spec.CSI
	return v.Annotations[volume.AnnDeletionSecretName] != "" || slices.ContainsFunc([]*corev1.SecretReference{
		c.NodePublishSecretRef, c.NodeStageSecretRef, c.NodeExpandSecretRef, c.ControllerPublishSecretRef,
		c.ControllerExpandSecretRef,
	}, func(r *corev1.SecretReference) bool { return r != nil })
}

// capacity fails the test if the host publishes the capacity of others: a scheduler uses the class and the topology.
func (m *hostModel) capacity(name string) {
	c := must(m.admin.StorageV1().CSIStorageCapacities("kube-system").Get(m.t.Context(), name, metav1.GetOptions{}))(m.t)
	t := c.NodeTopology
	here := t != nil && t.MatchLabels["disk"] != "" && t.MatchLabels["disk"] != "n2"
	if c.StorageClassName != "shared" && (c.StorageClassName != "own" || !here) {
		m.t.Errorf("it publishes the capacity of class %q at %v", c.StorageClassName, t)
	}
}
