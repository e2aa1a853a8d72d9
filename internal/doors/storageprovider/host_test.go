package storageprovider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/doors/users/userstest"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit/golden"
)

// TestStories plays the calls of systemd, and failures around them.
func TestStories(t *testing.T) {
	golden.Steps(t, "testdata/stories.txt", func(t *testing.T, play func(func(string) string)) {
		synctest.Test(t, func(t *testing.T) {
			w := newHosted(t)
			defer func() { w.stop() }()
			play(w.play)
		})
	})
}

// hosted is a door on a host, which systemd calls.
type hosted struct {
	*userstest.Host
	t    *testing.T
	door *Door
	stop context.CancelFunc
	// readOnly are volumes that cannot be written, stuck those whose filesystems do not answer.
	readOnly, stuck bool
	// deaf is a caller that has disconnected.
	deaf bool
}

func newHosted(t *testing.T) *hosted {
	class := func(name string) runtime.Object {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	block, archive, data := userstest.Claim("block"), userstest.Claim("archive"), userstest.Claim("data")
	block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	archive.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	for _, c := range []*corev1.PersistentVolumeClaim{block, data} {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	data.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	w := &hosted{Host: userstest.New(t, annAcquired, block, archive, data, class("fast"), class("slow")), t: t}
	w.start()
	return w
}

// start starts a door, and an agent beside it.
func (w *hosted) start() {
	ctx, stop := context.WithCancel(w.t.Context())
	w.stop = stop
	w.door = newDoor(options.DoorOptions{
		Namespace: userstest.Namespace, Node: userstest.Node, Grace: options.StorageGrace, Version: "v1",
		Log: slog.New(slog.DiscardHandler),
	}, w.API, w.Kernel(), w.open)
	go w.door.users.Open(ctx, w.door.caches, w.door.ready)
	go w.Agent(ctx)
	synctest.Wait()
}

// open opens a file that stands for the volume.
func (w *hosted) open(path string, block, readOnly bool) (*os.File, bool, error) {
	if w.stuck {
		<-w.t.Context().Done()
	}
	if !strings.HasPrefix(path, "/node/pods/") {
		w.t.Errorf("it is mounted at %s", path)
	}
	kind := "dir"
	if block {
		kind = "block"
	}
	f, err := os.Create(filepath.Join(w.t.TempDir(), kind))
	return f, readOnly || w.readOnly, err
}

// call makes a call as systemd does, and returns its answers.
func (w *hosted) call(method, parameters string) string {
	method, more := strings.CutSuffix(method, "+")
	if !strings.Contains(method, ".") {
		method = ofProvider + method
	}
	var out []string
	send := func(r reply, file *os.File) error {
		if w.deaf {
			return errors.New("nobody reads")
		}
		text, err := json.Marshal(r)
		if err != nil {
			w.t.Fatal(err)
		}
		line := string(text)
		if file != nil {
			line += " and " + filepath.Base(file.Name())
		}
		out = append(out, line)
		return nil
	}
	q := call{Method: method, Parameters: json.RawMessage(parameters), More: more}
	if err := w.door.answer(w.t.Context(), q, send); err != nil {
		w.deaf = false
		_ = send(asReply(err), nil)
	}
	return strings.Join(out, "\n")
}

// play does what the words of a step say, and returns what is to be seen of it.
func (w *hosted) play(step string) string {
	verb, rest, _ := strings.Cut(step, " ")
	switch verb {
	case "restart":
		w.stop()
		synctest.Wait()
		w.start()
	case "volumes":
		w.readOnly, w.stuck = rest == "can only be read", rest == "do not answer"
	case "deaf":
		w.deaf = true
	default:
		if !w.Play(step) {
			return w.call(verb, rest)
		}
	}
	return w.State(func(c *corev1.PersistentVolumeClaim) string {
		if c.Labels == nil {
			return ""
		}
		size := c.Spec.Resources.Requests[corev1.ResourceStorage]
		return fmt.Sprintf(" (made: %s of class %q, %s)", size.String(), ptr.Deref(c.Spec.StorageClassName, ""), typeOf(c))
	})
}
