package kubetest

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/volume"
)

// World is an API in which a controller works on its own, while the test plays all other clients. Use it in a bubble of
// synctest.
type World struct {
	*testing.T
	// Users is the client of everybody else, Own the controller's.
	Users *API
	Own   *fake.Clientset
	// OnStart, when set, is called before the controller starts again.
	OnStart func()

	build func(controller.Env) *controller.Controller
	life  *Process
	wrote []string
}

// InWorld plays in a world that has objects at its start.
func InWorld(
	t *testing.T, build func(controller.Env) *controller.Controller, play func(*World), objects ...runtime.Object,
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &World{T: t, Users: NewAPI(t, objects...), build: build}
		w.start()
		play(w)
		w.life.Kill()
	})
}

func (w *World) start() {
	w.Helper()
	if w.OnStart != nil {
		w.OnStart()
	}
	w.life = w.Users.Begin(w.build)
	w.Own = w.life.Client
	w.life.Work()
	Pass(soon)
}

// Restart makes the controller forget its memory.
func (w *World) Restart() {
	w.Helper()
	w.life.Kill()
	w.wrote = append(w.wrote, Writes(w.Own)...)
	w.start()
}

// Writes returns what all lives of the controller have written.
func (w *World) Writes() []string { return slices.Concat(w.wrote, Writes(w.Own)) }

// Nodes are those of the world.
func (w *World) Nodes() Objects[*corev1.Node] { return w.Users.CoreV1().Nodes() }

// Pods are those of a namespace.
func (w *World) Pods(namespace string) Objects[*corev1.Pod] { return w.Users.CoreV1().Pods(namespace) }

// Claims are those of a namespace.
func (w *World) Claims(namespace string) Objects[*corev1.PersistentVolumeClaim] {
	return w.Users.CoreV1().PersistentVolumeClaims(namespace)
}

// Volumes are those of the world.
func (w *World) Volumes() Objects[*corev1.PersistentVolume] {
	return w.Users.CoreV1().PersistentVolumes()
}

// Attachments are those of the world.
func (w *World) Attachments() Objects[*storagev1.VolumeAttachment] {
	return w.Users.StorageV1().VolumeAttachments()
}

// Heard compares all events so far, in any order, as "KIND NAME TYPE: REASON "MESSAGE",
// next WHO (COUNT)"; readable changes the names of objects.
func (w *World) Heard(readable func(name string) string, want ...string) {
	w.Helper()
	list, err := w.Users.CoreV1().Events("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	got := []string{}
	for _, e := range list.Items {
		next := ""
		if who := e.Annotations[volume.AnnNext]; who != "" {
			next = ", next " + who
		}
		got = append(got, fmt.Sprintf("%s %s %s: %s %q%s (%d)", e.InvolvedObject.Kind, readable(e.InvolvedObject.Name),
			e.Type, e.Reason, volume.MessageOf(e.Message, e.Annotations), next, e.Count))
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got, Whole()); diff != "" {
		w.Errorf("events (-want +got):\n%s", diff)
	}
}
