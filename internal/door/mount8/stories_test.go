package mount8

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// world is a host with one node, whose agent mounts immediately unless configured otherwise.
type world struct {
	t      *testing.T
	client *fake.Clientset
	// mounted has the sources of what is mounted, by path.
	mounted map[string]string
	// dir is where the tests mount.
	dir string
	// looks is how often the mount table was read; the mount is seen only after late of them.
	looks, late int
	busy, note  error
	// trapped says that an automount waits, made that the directory of the node agent is new.
	trapped, made bool
	// arguments are those of mount(8), and fstab the options there.
	arguments, fstab string
	// noted are the options that were last recorded for umount(8).
	noted []string
	out   bytes.Buffer
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{t: t, mounted: map[string]string{}, dir: t.TempDir()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	w.client = fake.NewClientset(append(objects, node)...)
	w.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.UID = "uid"
		pod.Status.Conditions = mountedCondition(corev1.ConditionTrue)
		w.mounted[pod.Annotations[volume.AnnMountAt]] = "/dev/loop0"
		return false, nil, nil
	})
	return w
}

func mountedCondition(s corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: s}}
}

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// run calls a program, and compares its exit status and what it says.
func (w *world) run(ctx context.Context, line string, status int, says string) {
	w.t.Helper()
	w.out.Reset()
	words := strings.Fields(strings.ReplaceAll(line, "DIR", w.dir))
	h := Host{
		Err: &w.out, Explain: func(err error) string { return err.Error() + "\nand more" },
		Why: func(context.Context, kubernetes.Interface, string, string) string { return "driver d is slow" },
		Client: func(kubeconfig string) (kubernetes.Interface, string, error) {
			if kubeconfig != "" {
				return nil, "", errors.New("no file " + kubeconfig)
			}
			return w.client, "default", nil
		},
		Kubeconfig: func(string) string { return "/etc/used" },
		Mounts: Mounts{
			At: func(path string) (mount.Point, bool, error) {
				w.looks++
				source, ok := w.mounted[path]
				return mount.Point{Source: source}, ok && w.looks > w.late, nil
			},
			Trapped: func(string) (bool, error) { return w.trapped, nil },
			Make:    func(string) (bool, error) { return w.made, nil },
			Kept:    func(string) (string, string) { return w.arguments, w.fstab },
			Bind: func(from, to string) error {
				w.mounted[to] = w.mounted[from]
				return nil
			},
			Unmount: func(path string) error {
				if w.busy == nil {
					delete(w.mounted, path)
				}
				return w.busy
			},
			Note: func(_ context.Context, _ string, options []string) error {
				w.noted = options
				return w.note
			},
			Noted: func(string) map[string]string { return nil },
		},
	}
	got := Run(ctx, h, words[0], words[1:])
	text := w.out.String()
	if got != status || !strings.Contains(text, says) || strings.Count(text, "\n") > 1 || (says == "") != (text == "") {
		w.t.Errorf("%s: status %d, %q; want %d, %q", line, got, text, status, says)
	}
}

// pods are the Pods that there are, with their paths.
func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func TestMountAndUmount(t *testing.T) {
	w := newWorld(t, claim("data"), claim("other"))
	ctx := t.Context()
	w.run(ctx, "mount.volplane data DIR -o ro,nosuid", exitOK, "")
	pods := w.pods()
	if len(pods) != 1 || pods[0].Annotations[volume.AnnMountOptions] != "ro" ||
		pods[0].Annotations[volume.AnnUnmountEnds] != "true" || pods[0].Spec.NodeName != "one" {
		t.Fatalf("pods: %+v", pods)
	}
	if slices.Sort(w.noted); !slices.Equal(w.noted, []string{"x-volplane.kubeconfig=/etc/used", "x-volplane.node=one"}) {
		t.Errorf("noted: %q", w.noted)
	}
	w.run(ctx, "mount.volplane default/data DIR -o ro", exitOK, "")
	w.run(ctx, "mount.volplane data DIR -o rw", exitFailed, `already mounted there with the options "ro"`)
	w.run(ctx, "mount.volplane other DIR", exitFailed, "claim default/data is mounted at "+w.dir)
	w.busy = errors.New("target is busy")
	w.run(ctx, "umount.volplane DIR", exitFailed, "target is busy")
	if len(w.pods()) != 1 {
		t.Error("the use of a busy directory has ended")
	}
	w.run(ctx, "umount.volplane -l DIR", exitOK, "")
	if len(w.pods()) != 0 || w.mounted[w.dir] == "" {
		t.Error("a lazy unmount only asks")
	}
	w.run(ctx, "umount.volplane DIR", exitFailed, "umount -i")
	w.run(ctx, "mount.volplane data DIR", exitFailed, "something else is mounted at "+w.dir+": /dev/loop0")
	delete(w.mounted, w.dir)
	w.run(ctx, "umount.volplane DIR", exitOK, "")
	w.run(ctx, "mount.volplane data DIR", exitOK, "")
	// It is unmounted manually, and the node agent has not seen it yet.
	delete(w.mounted, w.dir)
	w.run(ctx, "mount.volplane data DIR -o noexec", exitOK, "")
	if pods := w.pods(); len(pods) != 1 || pods[0].Annotations[volume.AnnMountOptions] != "noexec" {
		t.Errorf("the newer request is not the valid one: %+v", pods)
	}
	w.run(ctx, "umount.volplane -f DIR", exitOK, "")
	if len(w.pods()) != 0 {
		t.Error("a forced unmount leaves the Pod")
	}
}

// TestMountOverAutomount: the node agent mounts elsewhere, and this program itself where the automount waits, and
// unmounts there, however it is called.
func TestMountOverAutomount(t *testing.T) {
	w := newWorld(t, claim("data"))
	w.trapped = true
	for _, how := range []string{"", " -l", " -f"} {
		w.run(t.Context(), "mount.volplane data DIR", exitOK, "")
		w.run(t.Context(), "mount.volplane data DIR", exitOK, "")
		pods := w.pods()
		want := map[string]string{volume.AnnMountAt: door.Stage(w.dir), volume.AnnMountFor: w.dir}
		if len(pods) != 1 || !maps.Equal(pods[0].Annotations, want) || w.mounted[w.dir] == "" {
			t.Fatalf("mounted: %v, pods: %+v", w.mounted, pods)
		}
		w.busy = errors.New("target is busy")
		w.run(t.Context(), "umount.volplane DIR"+how, exitFailed, "target is busy")
		w.busy = nil
		w.run(t.Context(), "umount.volplane DIR"+how, exitOK, "")
		if len(w.pods()) != 0 || w.mounted[w.dir] != "" {
			t.Errorf("%q leaves %v", how, w.mounted)
		}
		delete(w.mounted, door.Stage(w.dir))
	}
	// After a boot only the Pod exists.
	pod := door.PodAtPath("default", "data", door.Stage(w.dir), "one", decide.BindOptions{})
	pod.UID = "old"
	if err := w.client.Tracker().Add(pod); err != nil {
		t.Fatal(err)
	}
	w.made = true
	w.run(t.Context(), "mount.volplane data DIR", exitOK, "")
	if pods := w.pods(); len(pods) != 1 || pods[0].UID == "old" || w.mounted[w.dir] == "" {
		t.Errorf("mounted: %v, pods: %+v", w.mounted, pods)
	}
}

// TestMountCreates: the claim is created only if that is requested, and only once.
func TestMountCreates(t *testing.T) {
	w := newWorld(t)
	w.run(t.Context(), "mount.volplane data DIR", exitFailed, "claim default/data does not exist")
	for range 2 {
		w.run(t.Context(), "mount.volplane data DIR -o volplane.create,volplane.size=2Gi,volplane.class=fast", exitOK, "")
	}
	c, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil || c.Spec.Resources.Requests.Storage().String() != "2Gi" || *c.Spec.StorageClassName != "fast" {
		t.Errorf("claim: %+v, %v", c, err)
	}
}

// TestMountOfAnotherNode: whatever a Pod of another host is called, it stays.
func TestMountOfAnotherNode(t *testing.T) {
	w := newWorld(t, claim("data"))
	other := door.PodAtPath("default", "data", w.dir, "two", decide.BindOptions{})
	other.Name = door.PodAtPath("default", "data", w.dir, "one", decide.BindOptions{}).Name
	if err := w.client.Tracker().Add(other); err != nil {
		t.Fatal(err)
	}
	w.run(t.Context(), "mount.volplane data DIR -o ro", exitFailed,
		"already mounted there on node two (pod "+other.Name+")")
	if pods := w.pods(); len(pods) != 1 || pods[0].Spec.NodeName != "two" {
		t.Errorf("pods: %+v", pods)
	}
}

// TestMountOfDeletedClaim: what would be written there would be lost with the claim.
func TestMountOfDeletedClaim(t *testing.T) {
	leaving := claim("data")
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{}, []string{"kubernetes.io/pvc-protection"}
	w := newWorld(t, leaving)
	for _, options := range []string{"ro", "volplane.create,volplane.size=1Gi"} {
		w.run(t.Context(), "mount.volplane data DIR -o "+options, exitFailed, "claim default/data is being deleted")
	}
	if len(w.pods()) != 0 || w.mounted[w.dir] != "" {
		t.Errorf("it is mounted: %v", w.mounted)
	}
}

// TestMountSays: each failure is one line, with the status of mount(8).
func TestMountSays(t *testing.T) {
	w := newWorld(t, claim("data"))
	ctx := t.Context()
	w.run(ctx, "mount.volplane data", exitUsage, "mount.volplane: wrong use: mount -t volplane CLAIM DIR; and more")
	w.run(ctx, "mount.volplane data DIR/none", exitFailed, "make the directory first")
	w.run(ctx, "mount.volplane data DIR -o volplane.kubeconfig=/etc/k", exitFailed, "no file /etc/k")
	w.run(ctx, "mount.volplane data DIR -f", exitOK, "")
	if len(w.pods()) != 0 {
		t.Error("a fake mount has an effect")
	}
	w.note = errors.New("umount does not call it")
	w.run(ctx, "mount.volplane data DIR", exitOK, "umount does not call it")
	w.late = w.looks + 4
	w.run(ctx, "mount.volplane data DIR", exitOK, "umount does not call it")
	if w.looks <= w.late {
		t.Error("what the API says was believed before the mount was seen")
	}
}

// TestMountWaits: the next actor is named, and the request stays.
func TestMountWaits(t *testing.T) {
	w := newWorld(t, claim("data"))
	pod := door.PodAtPath("default", "data", w.dir, "one", decide.BindOptions{})
	pod.Status.Conditions = mountedCondition(corev1.ConditionFalse)
	if err := w.client.Tracker().Add(pod); err != nil {
		t.Fatal(err)
	}
	w.run(t.Context(), "mount.volplane data DIR -o volplane.timeout=1ms", exitFailed, "driver d is slow: claim "+
		"default/data is not mounted at "+w.dir)
	if len(w.pods()) != 1 || door.ClaimOf(&w.pods()[0]) != "data" {
		t.Error("the request is gone")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	w.run(ended, "mount.volplane data DIR", exitInterrupted, context.Canceled.Error())
}

// TestSubdir: mount(8) does not pass on an option that has no effect here, so its own arguments and fstab are
// read: a user who requests a part of the volume is not shown the whole.
func TestSubdir(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		arguments, fstab string
		refused          bool
	}{
		{"mount\x00data\x00DIR\x00-t\x00volplane\x00-o\x00ro,X-mount.subdir=a\x00", "", true},
		{"mount\x00-oX-mount.subdir=a\x00data\x00DIR\x00", "", true},
		{"mount\x00--options=X-mount.subdir=a,ro\x00data\x00DIR\x00", "", true},
		{"mount\x00DIR\x00", "_netdev,X-mount.subdir=/a", true},
		{"mount\x00DIR\x00-o\x00ro,X-mount.mkdir\x00", "_netdev,X-mount.subdirs", false},
		{"", "", false},
	} {
		w := newWorld(t, claim("data"))
		w.arguments, w.fstab = r.arguments, r.fstab
		status, says := exitOK, ""
		if r.refused {
			status, says = exitUsage, "X-mount.subdir: a volume is mounted as a whole"
		}
		w.run(t.Context(), "mount.volplane data DIR -o rw", status, says)
		if got := len(w.pods()); (got == 0) != r.refused {
			t.Errorf("%q, fstab %q: %d Pods", r.arguments, r.fstab, got)
		}
	}
}
