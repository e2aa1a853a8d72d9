package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/standalone/up"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/identity"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
)

// flexHost is a whole standalone control plane with FlexVolume drivers.
type flexHost struct {
	*host
	ctx        context.Context
	kubeconfig string
	// pool holds what the drivers keep, and what they were called with.
	pool, root string
}

func newFlexHost(t *testing.T) *flexHost {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "flex-")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(dir))
	f := &flexHost{
		host: &host{t: t, dir: dir}, ctx: t.Context(), kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
		pool: filepath.Join(dir, "shares"),
		root: "/var/lib/volplane-flex-" + hex.EncodeToString(sum[:4]),
	}
	f.must(os.MkdirAll(f.pool, 0o700))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := &bytes.Buffer{}
	go func() {
		ended <- up.Run(ctx, up.Options{
			DataDir: dir, Listen: "127.0.0.1:0", Node: "n1", Out: io.Discard,
			Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, dir := range []string{f.root, f.dir} {
			points, err := mount.Below(dir)
			f.must(err)
			for i := len(points) - 1; i >= 0; i-- {
				t.Errorf("left mounted: %s", points[i].Path)
				f.must(mount.Detach(points[i].Path))
			}
			f.must(os.RemoveAll(dir))
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	f.eventually(func() string {
		config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
		if err != nil {
			return err.Error()
		}
		if f.client, err = kubernetes.NewForConfig(config); err != nil {
			return err.Error()
		}
		if _, err := f.client.CoreV1().Nodes().Get(f.ctx, "n1", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	return f
}

func (f *flexHost) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// install installs an example driver that logs its arguments.
func (f *flexHost) install(name string) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples/flex", name, name))
	f.must(err)
	out := strings.ReplaceAll(string(text), "/var/lib/"+name, f.pool)
	f.write(name, strings.Replace(out, "op=${1:-}\n", `printf '%s\n' "$*" >>`+f.pool+"/calls\nop=${1:-}\n", 1))
}

// write writes the file of an example driver.
func (f *flexHost) write(name, text string) {
	f.t.Helper()
	dir := filepath.Join(f.dir, "volumeplugins", "example.com~"+name)
	f.must(os.MkdirAll(dir, 0o755))
	f.must(os.WriteFile(filepath.Join(f.dir, "draft"), []byte(text), 0o755))
	f.must(os.Rename(filepath.Join(f.dir, "draft"), filepath.Join(dir, name)))
}

// volume creates a volume object with a FlexVolume, and a claim for it.
func (f *flexHost) volume(name string, source *corev1.FlexPersistentVolumeSource) {
	f.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("320Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	_, err := f.client.CoreV1().PersistentVolumes().Create(f.ctx,
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:       "grows",
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: source},
		}}, metav1.CreateOptions{})
	f.must(err)
	_, err = f.client.CoreV1().PersistentVolumeClaims("default").Create(f.ctx,
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, StorageClassName: ptr.To("grows"),
			VolumeName: "pv-" + name,
		}}, metav1.CreateOptions{})
	f.must(err)
}

// pod creates a Pod with volumes and returns its UID.
func (f *flexHost) pod(name string, volumes ...corev1.Volume) string {
	f.t.Helper()
	pod, err := f.client.CoreV1().Pods("default").Create(f.ctx,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}, Volumes: volumes,
			SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To[int64](4711)},
		}}, metav1.CreateOptions{})
	f.must(err)
	return string(pod.UID)
}

func claimed(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

// condition returns the node agent's condition about a Pod's volumes.
func (f *flexHost) condition(pod string) corev1.PodCondition {
	f.t.Helper()
	p, err := f.client.CoreV1().Pods("default").Get(f.ctx, pod, metav1.GetOptions{})
	f.must(err)
	for _, c := range p.Status.Conditions {
		if c.Type == volume.ConditionVolumesMounted {
			return c
		}
	}
	return corev1.PodCondition{}
}

func (f *flexHost) mounted(pod string) {
	f.t.Helper()
	f.eventually(func() string {
		if c := f.condition(pod); c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("pod %s: %s: %s", pod, c.Reason, c.Message)
		}
		return ""
	})
}

func (f *flexHost) path(uid, name string) string {
	return filepath.Join(f.dir, "node/pods", uid, "volumes/kubernetes.io~csi", name, "mount")
}

func (f *flexHost) calls() string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.pool, "calls"))
	f.must(err)
	return string(data)
}

// why returns what `volplane why` prints about an object.
func (f *flexHost) why(object string) string {
	var out bytes.Buffer
	cli.Main(f.ctx, []string{"why", object, "--kubeconfig", f.kubeconfig},
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out}, "", cli.Programs{})
	return strings.Join(strings.Fields(out.String()), " ")
}

// TestFlexVolumes: the controllers and the node agent attach, mount, expand and unmount volumes of
// FlexVolume drivers in PersistentVolumes and in Pods as they do for CSI. In the API the volumes remain
// FlexVolumes.
func TestFlexVolumes(t *testing.T) {
	f := newFlexHost(t)
	_, err := f.client.StorageV1().StorageClasses().Create(f.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "grows"}, Provisioner: "nobody", AllowVolumeExpansion: ptr.To(true),
	}, metav1.CreateOptions{})
	f.must(err)
	_, err = f.client.CoreV1().Secrets("default").Create(f.ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"user": "me"}},
		metav1.CreateOptions{})
	f.must(err)
	// Before there is a driver.
	f.volume("data", &corev1.FlexPersistentVolumeSource{
		Driver: "example.com/lofs", FSType: "xfs", Options: map[string]string{"file": "data", "size": "320Mi"},
		SecretRef: &corev1.SecretReference{Name: "s"},
	})
	inline := corev1.Volume{Name: "room", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{
		Driver: "example.com/scratch", Options: map[string]string{"size": "4Mi"},
		SecretRef: &corev1.LocalObjectReference{Name: "s"},
	}}}
	uid := f.pod("p", claimed("data"), inline)
	f.install("lofs")
	f.install("scratch")
	f.mounted("p")
	f.used(uid, "pv-data", "room")
	f.flexOnly("pv-data")
	if got := f.why("pvc/data"); !strings.Contains(got, "is healthy") ||
		!strings.Contains(got, "FlexVolume driver example.com/lofs") {
		t.Error(got)
	}
	f.grow()
	f.must(f.client.CoreV1().Pods("default").Delete(f.ctx, "p", metav1.DeleteOptions{}))
	f.gone("pod p", func() error {
		_, err := f.client.CoreV1().Pods("default").Get(f.ctx, "p", metav1.GetOptions{})
		return err
	})
	f.must(f.client.CoreV1().PersistentVolumeClaims("default").Delete(f.ctx, "data", metav1.DeleteOptions{}))
	f.eventually(func() string {
		v, err := f.client.CoreV1().PersistentVolumes().Get(f.ctx, "pv-data", metav1.GetOptions{})
		f.must(err)
		list, err := f.client.StorageV1().VolumeAttachments().List(f.ctx, metav1.ListOptions{})
		f.must(err)
		if v.Status.Phase != corev1.VolumeReleased || len(list.Items) > 0 {
			return fmt.Sprintf("volume %s, %d attachments", v.Status.Phase, len(list.Items))
		}
		return ""
	})
	f.flexOnly("pv-data")
	f.must(f.client.CoreV1().PersistentVolumes().Delete(f.ctx, "pv-data", metav1.DeleteOptions{}))
	f.gone("volume", func() error {
		_, err := f.client.CoreV1().PersistentVolumes().Get(f.ctx, "pv-data", metav1.GetOptions{})
		return err
	})
	if left, err := filepath.Glob(filepath.Join(f.root, "state/volumes/*/*/*")); err != nil || len(left) > 0 {
		t.Errorf("records are left: %v %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(f.pool, "data.img")); err != nil {
		t.Errorf("the data has gone: %v", err)
	}
}

// used requires that the Pod's group may write to the volumes, and that the drivers were given the Secret
// and the Pod.
func (f *flexHost) used(uid string, names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.must(os.WriteFile(filepath.Join(f.path(uid, name), "f"), []byte("x"), 0o600))
		info, err := os.Stat(f.path(uid, name))
		if err != nil || info.Mode()&os.ModeSetgid == 0 {
			f.t.Errorf("%s is not the group's: %v, %v", name, info, err)
		}
	}
	if got := f.calls(); strings.Count(got, `"kubernetes.io/secret/user":"bWU="`) != len(names) ||
		!strings.Contains(got, `"kubernetes.io/pod.uid":"`+uid+`"`) {
		f.t.Errorf("calls:\n%s", got)
	}
}

// grow requests more capacity, and waits until the claim has it.
func (f *flexHost) grow() {
	f.t.Helper()
	_, err := f.client.CoreV1().PersistentVolumeClaims("default").Patch(f.ctx, "data", types.MergePatchType,
		[]byte(`{"spec":{"resources":{"requests":{"storage":"400Mi"}}}}`), metav1.PatchOptions{})
	f.must(err)
	f.eventually(func() string {
		c, err := f.client.CoreV1().PersistentVolumeClaims("default").Get(f.ctx, "data", metav1.GetOptions{})
		f.must(err)
		if q := c.Status.Capacity[corev1.ResourceStorage]; q.Value() != 400<<20 {
			return fmt.Sprintf("the claim has %s: %+v", q.String(), c.Status)
		}
		return ""
	})
	if got := f.calls(); !strings.Contains(got, "expandvolume") || !strings.Contains(got, "expandfs") {
		f.t.Errorf("calls:\n%s", got)
	}
}

func (f *flexHost) gone(what string, get func() error) {
	f.t.Helper()
	f.eventually(func() string {
		if err := get(); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%s is there: %v", what, err)
		}
		return ""
	})
}

// flexOnly requires that the volume object is still a FlexVolume.
func (f *flexHost) flexOnly(name string) {
	f.t.Helper()
	v, err := f.client.CoreV1().PersistentVolumes().Get(f.ctx, name, metav1.GetOptions{})
	f.must(err)
	if v.Spec.CSI != nil || v.Spec.FlexVolume == nil {
		f.t.Errorf("volume %s is %+v", name, v.Spec)
	}
}

// TestFlexVolumeExplained: `volplane why` names the driver that does not work, and its message.
func TestFlexVolumeExplained(t *testing.T) {
	f := newFlexHost(t)
	const script = "#!/bin/sh\necho '{\"status\":\"Failure\",\"message\":\"jq is not installed\"}'; exit 1\n"
	f.write("lofs", script)
	f.write("scratch", script)
	f.volume("data", &corev1.FlexPersistentVolumeSource{Driver: "example.com/lofs"})
	f.pod("p", claimed("data"))
	f.pod("q", corev1.Volume{
		Name: "room", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/scratch"}},
	})
	for _, pod := range []string{"pod/p", "pod/q"} {
		f.eventually(func() string {
			if got := f.why(pod); !strings.Contains(got, "has a problem") || !strings.Contains(got, "jq is not installed") {
				return got
			}
			return ""
		})
	}
	f.install("scratch")
	f.mounted("q")
	if got := f.why("pod/q"); !strings.Contains(got, "is healthy") {
		t.Error(got)
	}
	for _, pod := range []string{"p", "q"} {
		f.must(f.client.CoreV1().Pods("default").Delete(f.ctx, pod, metav1.DeleteOptions{}))
		f.gone(pod, func() error {
			_, err := f.client.CoreV1().Pods("default").Get(f.ctx, pod, metav1.GetOptions{})
			return err
		})
	}
}

// TestFlexVolumeOnAnotherNode: the control plane's bridge attaches to a node that joined. The node's own
// bridge mounts, with the node's rights.
func TestFlexVolumeOnAnotherNode(t *testing.T) {
	f := newFlexHost(t)
	f.install("lofs")
	dir, err := os.MkdirTemp("/tmp", "n2-")
	f.must(err)
	t.Cleanup(func() { f.must(os.RemoveAll(dir)) })
	invitation, err := up.Invite(t.Context(), f.dir, "n2", "", time.Minute)
	f.must(err)
	invited, err := clientcmd.RESTConfigFromKubeConfig(invitation)
	f.must(err)
	log, agent := slog.New(slog.DiscardHandler), filepath.Join(dir, "agent")
	f.must(os.Mkdir(agent, 0o700))
	joined, err := identity.Join(t.Context(), invited, agent, log)
	f.must(err)
	client, err := kubernetes.NewForConfig(joined.Config)
	f.must(err)
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error {
			return flex.Bridge(ctx, flex.BridgeOptions{
				Node: "n2", PluginDir: filepath.Join(f.dir, "volumeplugins"), RootDir: filepath.Join(dir, "root"),
				Client: client, Log: log,
				SocketDir: filepath.Join(agent, "plugins"), RegistryDir: filepath.Join(agent, "plugins_registry"),
			})
		},
		func(ctx context.Context) error {
			return app.Node(ctx, options.NodeOptions{
				Name: "n2", RootDir: agent, Config: joined.Config, Drivers: csi.NewSet(), Bridged: true, Log: log,
			})
		},
	} {
		f.part(run)
	}
	f.volume("data", &corev1.FlexPersistentVolumeSource{
		Driver: "example.com/lofs", FSType: "ext4", Options: map[string]string{"file": "data", "size": "64Mi"},
	})
	_, err = f.client.CoreV1().Pods("default").Create(f.ctx,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
			NodeName: "n2", Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{claimed("data")},
		}}, metav1.CreateOptions{})
	f.must(err)
	f.mounted("p")
	if _, err := os.Stat(filepath.Join(f.pool, "attached/data/n2")); err != nil {
		t.Errorf("it is not attached to the node: %v", err)
	}
	n, err := f.client.CoreV1().Nodes().Get(f.ctx, "n2", metav1.GetOptions{})
	if err != nil || n.Annotations[volume.AnnDriverNotes] != `{"lofs.example.com":""}` {
		t.Errorf("the node says %v, %v", n.Annotations, err)
	}
	f.must(f.client.CoreV1().Pods("default").Delete(f.ctx, "p", metav1.DeleteOptions{}))
	f.gone("pod p", func() error {
		_, err := f.client.CoreV1().Pods("default").Get(f.ctx, "p", metav1.GetOptions{})
		return err
	})
	f.eventually(func() string {
		if _, err := os.Stat(filepath.Join(f.pool, "attached/data")); err == nil {
			return "it is attached still"
		}
		return ""
	})
}
