package attaching

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// lease is the prefix of the name of the lease of Kubernetes' attacher.
const lease = "external-attacher-leader-"

// ourAttacher runs `volplane controller` beside the driver as an administrator would.
func ourAttacher(t *testing.T, s side) *upstream.Program {
	t.Helper()
	return upstream.Start(t, "volplane", upstream.Leading("controller", "--controllers=attacher",
		"--csi-address="+s.Storage.Driver.Socket, "--kubeconfig="+s.Server.AdminKubeconfig())...)
}

// TestSecondAttacherTakesOver: of three attachers, two of volplane and one of Kubernetes, one works. When
// it is killed or asked to stop, another one takes over (S3-007, S3-029, S3-031).
func TestSecondAttacherTakesOver(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Storage.Start(t, upstream.TwoNodes)
	s.Ours(t, csi.NewSet(), "attachdetach")
	for i := range 2 {
		must(s.MakeNode(ctx, fmt.Sprint("n", i+1), fmt.Sprint("id-n", i+1)))
	}
	for i := range 4 {
		must(s.Wire(ctx, "default", fmt.Sprint("c", i),
			differential.CSIVolume(fmt.Sprint("v", i), differential.DriverName, corev1.ReadWriteOnce)))
	}
	attach := func(i int, by *upstream.Program) {
		t.Helper()
		must(makePod(ctx, s, "default", fmt.Sprint("p", i), "n1", fmt.Sprint("c", i)))
		upstream.Eventually(ctx, t, func() string {
			// A call that is done and not written down would be repeated.
			told, err := mayMount(ctx, s, "n1")
			must(err)
			if at := publishedTo(s, fmt.Sprint("id-v", i)); len(at) != 1 || len(told) != i+1 {
				return fmt.Sprintf("volume v%d is published to %v, the node may mount %v; %s", i, at, told, by.Log)
			}
			return ""
		})
	}
	first := ourAttacher(t, s)
	attach(0, first)
	holder := leader(ctx, t, s, "")
	second := ourAttacher(t, s)
	first.Kill()
	attach(1, second)
	next := leader(ctx, t, s, holder)
	theirs := upstream.Start(t, "csi-attacher",
		upstream.Leading("--csi-address="+s.Storage.Driver.Socket, "--kubeconfig="+s.Server.AdminKubeconfig(),
			"--leader-election")...)
	attach(2, second)
	second.End()
	attach(3, theirs)
	if again := leader(ctx, t, s, next); strings.Contains(again, "_") {
		t.Errorf("the last one is %s, not Kubernetes' attacher", again)
	}
	for i := range 4 {
		asked(t, s, i == 3, fmt.Sprint("id-v", i), "ControllerPublishVolume")
	}
}

// leader waits until the leader has changed, and returns it.
func leader(ctx context.Context, t *testing.T, s side, before string) (now string) {
	t.Helper()
	upstream.Eventually(ctx, t, func() string {
		l, err := s.Client.CoordinationV1().Leases("default").Get(ctx,
			lease+strings.ReplaceAll(differential.DriverName, ".", "-"),
			metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || *l.Spec.HolderIdentity == before {
			return fmt.Sprintf("no other process leads: %v %v", l, err)
		}
		now = *l.Spec.HolderIdentity
		return ""
	})
	return now
}
