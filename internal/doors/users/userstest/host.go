package userstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/doors/users"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// The names of the namespace and of the node.
const (
	Namespace = "default"
	Node      = "n1"
)

// Host is for use in a bubble of synctest.
type Host struct {
	API *kubetest.API
	t   *testing.T
	// references is the annotation of the users.
	references string

	mu sync.Mutex
	// idle is an agent that does nothing.
	idle bool
	// mounts are those of the agent by path, copies those of others by device.
	mounts map[string]mount.Point
	copies map[string]bool
	// blind is a kernel that does not report what is mounted.
	blind bool
}

// New returns a host with objects. references is the annotation that has the users.
func New(t *testing.T, references string, objects ...runtime.Object) *Host {
	return &Host{
		API: kubetest.NewAPI(t, objects...), t: t, references: references, mounts: map[string]mount.Point{},
		copies: map[string]bool{},
	}
}

// Kernel returns what the host reports to a door.
func (h *Host) Kernel() users.Kernel {
	return users.Kernel{Mounted: h.mounted, Copies: h.found, Now: time.Now}
}

func (h *Host) mounted(path string) (mount.Point, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, ok := h.mounts[path]
	return p, ok
}

func (h *Host) found(_ context.Context, ours func(string) bool) (func(mount.Point) bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ours("/node/pods/x") || !ours("/node/plugins/x") || ours("/srv") {
		h.t.Error("the agent's directory is not the agent's")
	}
	if h.blind {
		return nil, errors.New("blind")
	}
	return func(p mount.Point) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.copies[p.Device]
	}, nil
}

// Agent mounts the volumes of Pods, and releases Pods that are deleted, until ctx ends.
func (h *Host) Agent(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		h.work()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *Host) work() {
	h.mu.Lock()
	defer h.mu.Unlock()
	pods, err := h.API.CoreV1().Pods(Namespace).List(h.t.Context(), metav1.ListOptions{})
	if err != nil || h.idle {
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		path := "/node/pods/" + string(p.UID) + "/volumes/kubernetes.io~csi/pv/mount"
		_, mounted := h.mounts[path]
		switch {
		case p.DeletionTimestamp != nil:
			delete(h.mounts, path)
			h.API.Drop(p)
		case !mounted:
			h.mounts[path] = mount.Point{Device: "7:" + doors.ClaimOf(p), Root: "/"}
			condition(p, corev1.ConditionTrue, "data="+path)
			p.Annotations[volume.AnnPaths] = `{"data":"` + path + `"}`
			h.API.Put(p)
		}
	}
}

func condition(p *corev1.Pod, status corev1.ConditionStatus, message string) {
	p.Status.Conditions = []corev1.PodCondition{
		{Type: volume.ConditionVolumesMounted, Status: status, Message: message},
	}
}

// Pods returns all Pods.
func (h *Host) Pods() []corev1.Pod {
	pods, err := h.API.CoreV1().Pods(Namespace).List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return pods.Items
}

// Play does what the words of a step say, and returns false if the step is not one of the host's.
func (h *Host) Play(step string) bool {
	verb, rest, _ := strings.Cut(step, " ")
	switch verb {
	case "wait":
		d, err := time.ParseDuration(rest)
		if err != nil {
			h.t.Fatal(err)
		}
		<-time.After(d)
	case "agent":
		h.set(func() { h.idle = rest == "rests" })
	case "blind":
		h.set(func() { h.blind = rest == "yes" })
	case "container":
		h.set(func() { h.copies["7:"+rest] = true })
	case "gone":
		h.set(func() { delete(h.copies, "7:"+rest) })
	case "give-up":
		h.edit(func(p *corev1.Pod) { p.Status.Phase, p.Status.Message = corev1.PodFailed, "the volume is elsewhere" })
	case "forget":
		h.edit(func(p *corev1.Pod) { p.Annotations[h.references] = "nonsense" })
	case "waits":
		h.edit(func(p *corev1.Pod) { condition(p, corev1.ConditionFalse, rest) })
	default:
		return false
	}
	synctest.Wait()
	return true
}

func (h *Host) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *Host) edit(change func(*corev1.Pod)) {
	for _, p := range h.Pods() {
		change(&p)
		h.API.Put(&p)
	}
}

// State is what the API has of the door. mark adds to the name of a claim.
func (h *Host) State(mark func(*corev1.PersistentVolumeClaim) string) string {
	var all []string
	for _, p := range h.Pods() {
		readOnly := ""
		if p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly {
			readOnly = " (read-only)"
		}
		all = append(all, fmt.Sprintf("pod of %s%s: %s", doors.ClaimOf(&p), readOnly, p.Annotations[h.references]))
	}
	claims, err := h.API.CoreV1().PersistentVolumeClaims(Namespace).List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, c := range claims.Items {
		all = append(all, fmt.Sprint("claim ", c.Name, mark(&c)))
	}
	return strings.Join(all, "; ")
}

// Claim is one that no door has made.
func Claim(name string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-" + name)},
	}
	c.Status.Phase = corev1.ClaimBound
	return c
}
