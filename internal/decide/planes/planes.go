package planes

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/volume"
)

// Is says whether a control plane runs on a node.
func Is(n *corev1.Node) bool { return n.Annotations[volume.AnnControlPlane] != "" }

// First returns the name of the node of the first control plane: that with the oldest Node. Another one follows only
// when a user deletes that Node or marks it as out of service, not when the host is unreachable. It is empty if there
// is none.
func First(nodes []*corev1.Node) string {
	planes := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		return !Is(n) || nodelife.OutOfService(n)
	})
	if len(planes) == 0 {
		return ""
	}
	return slices.MinFunc(planes, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}).Name
}

// Published returns the data of volume.ConfigPlanes: the addresses, separated by commas, at which other hosts reach the
// control planes on nodes.
func Published(nodes []*corev1.Node) map[string]string {
	out := map[string]string{}
	for _, n := range nodes {
		if there := reachable(n.Annotations[volume.AnnControlPlane]); len(there) > 0 {
			out[n.Name] = strings.Join(there, ",")
		}
	}
	return out
}

// AddressesIn returns the addresses in the data of volume.ConfigPlanes, without invalid ones.
func AddressesIn(published map[string]string) []string {
	var out []string
	for _, node := range slices.Sorted(maps.Keys(published)) {
		out = append(out, reachable(published[node])...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mostAddresses is the number of addresses that a control plane may have.
const mostAddresses = 16

// reachable returns the addresses in a list, with commas, at which other hosts may reach something.
func reachable(list string) []string {
	var out []string
	for address := range strings.SplitSeq(list, ",") {
		colon := strings.LastIndexByte(address, ':')
		if colon <= 0 || colon == len(address)-1 || len(out) == mostAddresses {
			continue
		}
		host := strings.Trim(address[:colon], "[]")
		if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
			continue
		}
		out = append(out, address)
	}
	return out
}

// Assignment says what a process of a control plane does as the controller of a driver.
type Assignment struct {
	// Calls says that it calls the driver, for the volumes in Scope.
	Calls bool
	Scope volume.Scope
	// Shared says that other processes of this control plane may call the driver for the same volumes.
	Shared bool
}

// OfControlPlane returns what a control plane does for a driver whose CSIDriver has these annotations: it calls each,
// but a node-local one only for the volumes of a scope. Unless it is alone, other control planes may call the others
// for the same volumes.
func OfControlPlane(driver map[string]string, scope volume.Scope, alone bool) Assignment {
	if volume.IsNodeLocal(driver) {
		return Assignment{Calls: true, Scope: scope}
	}
	return Assignment{Calls: true, Shared: !alone || len(volume.DelegatedTo(driver)) > 0}
}

// OfHost returns what a host without the control plane does for a driver: it calls a node-local one for the volumes of
// its node, and one that is delegated to it for all volumes.
func OfHost(driver map[string]string, node string) Assignment {
	if volume.IsNodeLocal(driver) {
		return Assignment{Calls: true, Scope: volume.Scope{Node: node}}
	}
	return Assignment{Calls: volume.IsDelegatedTo(driver, node), Shared: true}
}
