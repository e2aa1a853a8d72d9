package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
)

// lease is the prefix of the name of the lease of Kubernetes' attacher.
const lease = "external-attacher-leader-"

// leading adds flags with which a lease expires soon, but not while the machine is busy.
func leading(flags ...string) []string {
	return append(flags, "--leader-election-lease-duration=12s", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=500ms")
}

// ourAttacher runs `volplane controller` beside the driver as an administrator does.
func (s side) ourAttacher(t *testing.T) *program {
	t.Helper()
	return startProgram(t, "volplane", leading("controller", "--controllers=attacher",
		"--csi-address="+s.storage.driver.Socket, "--kubeconfig="+s.server.AdminKubeconfig())...)
}

// TestSecondAttacherTakesOver: of three attachers, two of volplane and one of Kubernetes, one works. When
// it is killed or asked to end, another one takes over (S3-007, S3-029, S3-031).
func TestSecondAttacherTakesOver(t *testing.T) {
	t.Parallel()
	s := newSide(t, "both")
	ctx, cancel := context.WithTimeout(t.Context(), sceneLimit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.storage.start(t, twoNodes)
	s.ours(t, csi.NewSet(), "attachdetach")
	for i := range 2 {
		must(s.makeNode(ctx, fmt.Sprint("n", i+1), fmt.Sprint("id-n", i+1)))
	}
	for i := range 4 {
		must(s.wire(ctx, "default", fmt.Sprint("c", i), csiVolume(fmt.Sprint("v", i), driverName, corev1.ReadWriteOnce)))
	}
	attach := func(i int, by *program) {
		t.Helper()
		must(s.makePod(ctx, "default", fmt.Sprint("p", i), "n1", fmt.Sprint("c", i)))
		eventually(ctx, t, func() string {
			// A call that is done and not written down would be repeated.
			told, err := s.mayMount(ctx, "n1")
			must(err)
			if at := s.publishedTo(fmt.Sprint("id-v", i)); len(at) != 1 || len(told) != i+1 {
				return fmt.Sprintf("volume v%d is published to %v, the node may mount %v; %s", i, at, told, by.log)
			}
			return ""
		})
	}
	first := s.ourAttacher(t)
	attach(0, first)
	holder := s.holder(ctx, t, "")
	second := s.ourAttacher(t)
	first.kill()
	attach(1, second)
	next := s.holder(ctx, t, holder)
	theirs := startProgram(t, "csi-attacher",
		leading("--csi-address="+s.storage.driver.Socket, "--kubeconfig="+s.server.AdminKubeconfig(), "--leader-election")...)
	attach(2, second)
	second.end()
	attach(3, theirs)
	if again := s.holder(ctx, t, next); strings.Contains(again, "_") {
		t.Errorf("the last one is %s, not Kubernetes' attacher", again)
	}
	for i := range 4 {
		s.asked(t, i == 3, fmt.Sprint("id-v", i), "ControllerPublishVolume")
	}
}

// holder waits until the leader is another one than before, and returns it.
func (s side) holder(ctx context.Context, t *testing.T, before string) (now string) {
	t.Helper()
	eventually(ctx, t, func() string {
		l, err := s.client.CoordinationV1().Leases("default").Get(ctx, lease+strings.ReplaceAll(driverName, ".", "-"),
			metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || *l.Spec.HolderIdentity == before {
			return fmt.Sprintf("nobody else leads: %v %v", l, err)
		}
		now = *l.Spec.HolderIdentity
		return ""
	})
	return now
}
