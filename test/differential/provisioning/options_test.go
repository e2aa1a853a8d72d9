package provisioning

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// optioned is how many sequences are played with the same options, and fewOptions how many options `make test` draws.
const optioned, fewOptions = 5, 3

// TestProvisionerOptionsIsKubernetes does the same as TestTopologyIsKubernetes with volplane under the name of
// csi-provisioner, and with options that are drawn for every five seeds, the same ones at both sides.
func TestProvisionerOptionsIsKubernetes(t *testing.T) {
	t.Parallel()
	first := seeds.First(t)
	for i := range seeds.Count(t, fewOptions) {
		from := first + uint64(i*optioned)
		o := drawOptions(from)
		t.Run(fmt.Sprint(from, o.args), func(t *testing.T) {
			t.Parallel()
			playOptions(t, o, from, from+optioned)
		})
	}
}

// provisionerOptions are options of a provisioner.
type provisionerOptions struct {
	args []string
	// naming is what they make of the names of volumes.
	naming func(types.UID) string
}

func drawOptions(seed uint64) provisionerOptions {
	d := differential.NewDice(seed)
	o := provisionerOptions{}
	for _, arg := range []string{
		"--default-fstype=xfs", "--extra-create-metadata", "--strict-topology", "--immediate-topology=false",
		"--controller-publish-readonly", "--prevent-volume-mode-conversion=false",
	} {
		if d.IntN(2) == 0 {
			o.args = append(o.args, arg)
		}
	}
	if d.IntN(6) == 0 {
		o.args = append(o.args, "--feature-gates=Topology=false")
	}
	prefix, length := differential.Pick(d, "pvc", "data"), differential.Pick(d, -1, 12)
	if prefix != "pvc" || length > 0 {
		o.args = append(o.args, "--volume-name-prefix="+prefix, fmt.Sprint("--volume-name-uuid-length=", length))
		o.naming = func(uid types.UID) string {
			if length < 0 {
				return prefix + "-" + string(uid)
			}
			return prefix + "-" + strings.ReplaceAll(string(uid), "-", "")[:length]
		}
	}
	return o
}

func playOptions(t *testing.T, o provisionerOptions, first, last uint64) {
	t.Helper()
	ours, theirs := differential.NewSide(t, "volplane", provisioning()), differential.NewSide(t, "kubernetes",
		provisioning())
	for _, s := range []side{ours, theirs} {
		s.Memory.Naming = o.naming
		zones(t, s)
		s.Storage.Placed = preferred()
		s.Storage.Start(t, func(c *csitest.Config) { c.Plugin.AccessibilityConstraints = true })
		s.StartController(func() func() { return s.Theirs(t, upstream.TheirBinder...) })
	}
	theirs.StartController(func() func() {
		return upstream.Start(t, "csi-provisioner", append(theirs.ProvisionerArgs(theirs.Storage.Driver), o.args...)...).Kill
	})
	ours.StartController(func() func() {
		args := slices.Concat([]string{"csi-provisioner"}, ours.ProvisionerArgs(ours.Storage.Driver), o.args)
		return upstream.Start(t, "volplane", args...).Kill
	})
	differential.CompareFrom(t, &differential.Differential{
		Sides: []side{ours, theirs}, Draw: drawTopology, Allowed: provisioningMayDiffer, Counted: map[string]int{},
	}, first, last)
}
