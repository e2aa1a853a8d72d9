package nodelife

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// mostNamed is how many objects a report names of each kind.
const mostNamed = 20

// LostReport says what is lost with a host, what goes on elsewhere, and what may still run there.
func LostReport(f LostFacts) string {
	var out strings.Builder
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&out, "%s\n", title)
		for i, line := range lines {
			if i == mostNamed {
				fmt.Fprintf(&out, "  and %d more\n", len(lines)-mostNamed)
				break
			}
			fmt.Fprintf(&out, "  %s\n", line)
		}
	}
	fmt.Fprintf(&out, "Node %s is given up for good.\n", f.Name)
	lost, shared, contents := f.made()
	list("Lost for good, because no other host has them:", append(described(lost), named(contents)...))
	if len(f.Intents) > 0 {
		list("Lost, too:", []string{"what its drivers had begun to make"})
	}
	list("Left alone, because another host reaches them (give each its host: kubectl annotate pv NAME --overwrite "+
		volume.AnnProvisionedOn+"=HOST):", described(shared))
	var away []string
	for _, a := range f.Attachments {
		if !f.Local[a.Spec.Attacher] && a.Spec.Source.PersistentVolumeName != nil {
			away = append(away, "volume "+*a.Spec.Source.PersistentVolumeName+" of driver "+a.Spec.Attacher)
		}
	}
	list("Detached from it, so that other hosts can use them:", away)
	var pods []string
	for _, p := range f.Pods {
		pods = append(pods, "pod "+p.Namespace+"/"+p.Name)
	}
	list("Deleted, and mounted elsewhere only if somebody makes them anew:", pods)
	out.WriteString("Its identity is revoked, so it cannot come back by itself. If the host still runs, what is\n" +
		"mounted there stays mounted and may be written to: make sure that it is off, or cut off from shared storage.\n")
	return out.String()
}

// described returns a line about each volume, in the order of their claims.
func described(all []*corev1.PersistentVolume) []string {
	var out []string
	for _, v := range slices.SortedFunc(slices.Values(all), func(a, b *corev1.PersistentVolume) int {
		return strings.Compare(cluster.ClaimOf(a), cluster.ClaimOf(b))
	}) {
		line := "volume " + v.Name
		if s := v.Spec.CSI; s != nil {
			line += " (" + s.VolumeHandle + " of driver " + s.Driver + ")"
		}
		if claim := cluster.ClaimOf(v); claim != "" {
			line += ", claim " + claim
		}
		out = append(out, line)
	}
	return out
}

func named[T interface{ GetName() string }](all []T) []string {
	var out []string
	for _, o := range all {
		out = append(out, "snapshot content "+o.GetName())
	}
	return out
}
