package scheduling

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/volume"
)

// Words of Kubernetes' scheduler about volumes.
const (
	wordsShort    = "node(s) did not have enough free storage"
	wordsUnbound  = "pod has unbound immediate PersistentVolumeClaims"
	wordsLimit    = "exceed max volume count"
	wordsAffinity = "PersistentVolume's node affinity"
	wordsConflict = "volume node affinity conflict" // of older ones
)

// unschedulable explains a Pod for which a scheduler has found no node, and which part of
// its message is about the Pod's volumes.
func (f Facts) unschedulable(p *corev1.Pod, message string, next volume.Actor) chain.Link {
	subject := "pod/" + p.Name
	if waits, ok := f.unboundClaim(p); ok && strings.Contains(message, wordsUnbound) {
		return chain.New(subject, chain.Waiting, volume.ReasonFailedPlacing, message, waits)
	}
	var why []string
	switch {
	case strings.Contains(message, wordsLimit):
		why = f.fullNodes(p)
	case strings.Contains(message, wordsAffinity), strings.Contains(message, wordsConflict):
		why = f.reachable(p)
	case drivers.UsesVolumes(f.View, p) && !aboutStorage(message):
		why = []string{"none of that is about its volumes"}
	}
	message = strings.Join(append([]string{strings.TrimRight(message, ".")}, why...), "; ")
	return chain.New(subject, chain.Problem, volume.ReasonFailedPlacing, message, next)
}

var ofStorage = regexp.MustCompile(`(?i)volume|pvc|free storage|no available disk|driver|storageclass`)

// aboutStorage says whether a scheduler's message names volumes, or a driver.
func aboutStorage(message string) bool {
	return ofStorage.MatchString(message)
}

// unboundClaim returns the first claim of a Pod that is not bound.
func (f Facts) unboundClaim(p *corev1.Pod) (volume.Actor, bool) {
	for _, name := range cluster.ClaimNames(p) {
		if c := cluster.Find(f.View.Claims, p.Namespace+"/"+name); c != nil && c.Status.Phase != corev1.ClaimBound {
			return volume.ClaimActor(name), true
		}
	}
	return volume.Actor{}, false
}

// fullNodes returns which nodes have reached the volume limit of the Pod's drivers.
func (f Facts) fullNodes(p *corev1.Pod) []string {
	var out []string
	for _, s := range f.driversOf(p) {
		for _, n := range f.View.CSINodes.List() {
			for _, d := range n.Spec.Drivers {
				if d.Name != s || d.Allocatable == nil || d.Allocatable.Count == nil {
					continue
				}
				if takes, has := int(*d.Allocatable.Count), drivers.Attached(f.View, n.Name, s); has >= takes {
					out = append(out, fmt.Sprintf("node %s can have %d volumes of driver %s and has %d", n.Name, takes, s, has))
				}
			}
		}
	}
	return chain.Few(out)
}

// driversOf returns the drivers of a Pod's claims, and those that are to make their volumes, each once.
func (f Facts) driversOf(p *corev1.Pod) []string {
	var out []string
	for _, name := range cluster.ClaimNames(p) {
		if driver := f.driverOf(p.Namespace + "/" + name); !slices.Contains(out, driver) {
			out = append(out, driver)
		}
	}
	return out
}

// reachable returns the nodes from which the Pod's volumes can be used, for volumes that are not usable everywhere.
func (f Facts) reachable(p *corev1.Pod) []string {
	var out []string
	for _, name := range cluster.ClaimNames(p) {
		v, _ := f.claim(p.Namespace + "/" + name)
		if v == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
			continue
		}
		out = append(out, usable(v))
	}
	return chain.Few(out)
}

// usable returns on which nodes a volume with a node affinity can be used.
func usable(v *corev1.PersistentVolume) string {
	var terms []string
	for _, t := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		var all []string
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			is := strings.ToLower(string(e.Operator))
			all = append(all, fmt.Sprintf("%s %s (%s)", e.Key, is, chain.Names(e.Values)))
		}
		terms = append(terms, strings.Join(all, " and "))
	}
	return "volume " + v.Name + " can be used on nodes with " + strings.Join(chain.Few(terms), ", or ")
}

// WrongNode explains a Pod that waits on a node where one of its volumes cannot be used. A Pod that is created with a
// nodeName gets there, because no scheduler has checked its volumes.
func (f Facts) WrongNode(p *corev1.Pod) (chain.Link, bool) {
	n := cluster.Find(f.View.Nodes, p.Spec.NodeName)
	if n == nil || p.Status.Phase == corev1.PodRunning || cluster.Mounted(p) {
		return chain.Link{}, false
	}
	for _, name := range cluster.ClaimNames(p) {
		v, _ := f.claim(p.Namespace + "/" + name)
		if v == nil || v.Spec.NodeAffinity == nil || topology.Selects(v.Spec.NodeAffinity.Required, n) {
			continue
		}
		b := volume.Say(volume.ReasonFailedPlacing, volume.User(), "the Pod is on node "+n.Name+", and "+usable(v))
		b.Object = "pv/" + v.Name
		return chain.Broken("pod/"+p.Name, b), true
	}
	return chain.Link{}, false
}
