package volume

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// testShell is a shell whose output is discarded.
func testShell(t *testing.T) *shell.Shell {
	t.Helper()
	return shell.New(t.Context(), shell.Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}, "test", shell.Programs{})
}

// TestMountIsSeen: after a boot the API still says that a volume is mounted. On this host the command ends well only
// when something is mounted at the directory; of another host it believes the API.
func TestMountIsSeen(t *testing.T) {
	host, bare := options.HostName(), t.TempDir()
	for _, c := range []struct{ dir, node, asked, want string }{
		{bare, host, "", "this process does not see it"},
		{bare, host, host, "this process does not see it"},
		{"/", host, "", "<nil>"},
		{bare, "elsewhere", "elsewhere", "<nil>"},
	} {
		pod := doors.PodAtPath("default", "data", c.dir, c.node, decide.BindOptions{})
		pod.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}}
		b := begun{Shell: testShell(t), client: clientset.New(pod), node: c.node, dir: c.dir, pod: pod}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if got := fmt.Sprint(b.await(ctx, c.asked)); !strings.Contains(got, c.want) {
				t.Errorf("%s on %s: %s", c.dir, c.node, got)
			}
		})
	}
}

// TestClaimThatLeaves: a claim that is being deleted can be neither created nor mounted, because its data are deleted
// with it.
func TestClaimThatLeaves(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "data", DeletionTimestamp: &metav1.Time{}, Finalizers: []string{"a.example.com/b"},
	}}
	b := begun{Shell: testShell(t), client: clientset.New(claim)}
	_, _, created := ensureClaim(t.Context(), b.Shell, b.client, "default", "data", claimRequest{size: "1Gi"})
	for name, err := range map[string]error{
		"create":         created,
		"mount":          b.claimFor(t.Context(), "default", "data", mountOptions{}),
		"mount --create": b.claimFor(t.Context(), "default", "data", mountOptions{create: true}),
	} {
		if err == nil || !strings.Contains(err.Error(), "is being deleted") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUmountAfterARestore: what waits for a person's consent is not begun, and the Pod stays.
func TestUmountAfterARestore(t *testing.T) {
	pod := doors.PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{})
	client := clientset.New(pod, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.NamespaceSystem, Name: volume.ConfigRestored},
	})
	err := unmount(t.Context(), testShell(t), client, pod, "/srv", 0)
	if err == nil || !strings.Contains(err.Error(), "volplane restore --accept") {
		t.Errorf("it is unmounted: %v", err)
	}
	if _, err := client.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestUmountOfAnAutomount: what mount.volplane has mounted itself is not left behind by the end of the Pod.
func TestUmountOfAnAutomount(t *testing.T) {
	host, bare := options.HostName(), t.TempDir()
	for _, c := range []struct {
		dir, at, node string
		refused       bool
	}{
		{"/", doors.Stage("/"), host, true},
		{doors.Stage("/"), doors.Stage("/"), host, true},
		{"/", doors.Stage("/"), "elsewhere", false},
		{bare, doors.Stage(bare), host, false},
		{"/", "/", host, false},
	} {
		pod := doors.PodAtPath("default", "data", c.at, c.node, decide.BindOptions{})
		if c.at != c.dir || c.refused {
			pod.Annotations[volume.AnnMountFor] = "/"
		}
		err := checkShown(testShell(t), pod, c.dir, c.node)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "use 'umount /'") {
			t.Errorf("umount %s of %s on %s: %v", c.dir, c.at, c.node, err)
		}
	}
}
