package mount8

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestStories plays the calls of mount(8) and umount(8), and shows the exit status and the words of each, the claims
// that it made, the Pods, and what is mounted and noted. A Pod is a new one if its UID is another.
func TestStories(t *testing.T) {
	golden.Steps(t, "testdata/stories.txt", func(t *testing.T, play func(func(string) string)) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) { play(newHost(t, dir).play) })
	})
}

// host has one node, whose agent mounts at once.
type host struct {
	t   *testing.T
	api *kubetest.API
	// dir is where the stories mount.
	dir string
	// mounted has the sources of what is mounted, by path.
	mounted map[string]string
	// looks is how often the mount table was read; the mount is seen only after late of them.
	looks, late int
	busy, note  error
	// trapped says that an automount waits, made that the directory of the node agent is new.
	trapped, made bool
	// arguments are those of mount(8), and fstab the options there.
	arguments, fstab string
	// noted are the options that were recorded for umount(8).
	noted []string
}

func newHost(t *testing.T, dir string) *host {
	h := &host{t: t, dir: dir, mounted: map[string]string{}}
	h.api = kubetest.NewAPI(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	h.api.Seen = func(w kubetest.Write) {
		pod, is := w.After.(*corev1.Pod)
		switch {
		case is && w.Verb == "create":
			h.mounted[pod.Annotations[volume.AnnMountAt]] = "/dev/loop0"
			h.api.Put(mountedIs(corev1.ConditionTrue, pod))
		case is && w.Verb == "delete":
			h.api.Drop(pod)
		}
	}
	return h
}

func mountedIs(s corev1.ConditionStatus, pod *corev1.Pod) *corev1.Pod {
	pod.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: s}}
	return pod
}

// program is what the programs have of the host.
func (h *host) program(out *bytes.Buffer) Host {
	return Host{
		Err: out, Explain: func(err error) string { return err.Error() + "\nand more" },
		Why: func(context.Context, kubernetes.Interface, string, string) string { return "driver d is slow" },
		Client: func(kubeconfig string) (kubernetes.Interface, string, error) {
			if kubeconfig != "" {
				return nil, "", errors.New("no file " + kubeconfig)
			}
			return h.api, "default", nil
		},
		Kubeconfig: func(string) string { return "/etc/used" },
		Mounts: Mounts{
			At: func(path string) (mount.Point, bool, error) {
				h.looks++
				source, ok := h.mounted[path]
				return mount.Point{Source: source}, ok && h.looks > h.late, nil
			},
			Trapped: func(string) (bool, error) { return h.trapped, nil },
			Make:    func(string) (bool, error) { return h.made, nil },
			Kept:    func(string) (string, string) { return h.arguments, h.fstab },
			Bind: func(from, to string) error {
				h.mounted[to] = h.mounted[from]
				return nil
			},
			Unmount: func(path string) error {
				if h.busy == nil {
					delete(h.mounted, path)
				}
				return h.busy
			},
			Note: func(_ context.Context, _ string, options []string) error {
				h.noted = slices.Sorted(slices.Values(options))
				return h.note
			},
			Noted: func(string) map[string]string { return nil },
		},
	}
}

// play does what the words of a step say, and returns what there is to see.
func (h *host) play(step string) string {
	step = strings.NewReplacer("STAGE", doors.Stage(h.dir), "DIR", h.dir).Replace(step)
	verb, rest, _ := strings.Cut(step, " ")
	do := map[string]func(){
		"claim":     func() { h.api.Put(claim(rest)) },
		"going":     func() { h.api.Put(going(rest)) },
		"pod":       func() { h.podAt(strings.Cut(rest, " ")) },
		"unmounted": func() { delete(h.mounted, rest) },
		"busy":      func() { h.busy = map[string]error{"yes": errors.New("target is busy")}[rest] },
		"late":      func() { h.late = h.looks + 4 },
		"automount": func() { h.trapped = true },
		"booted":    func() { h.made, h.mounted = true, map[string]string{} },
		"unnoted":   func() { h.note = errors.New(rest) },
		"arguments": func() { h.arguments = strings.ReplaceAll(rest, " ", "\x00") + "\x00" },
		"fstab":     func() { h.fstab = rest },
	}[verb]
	if do != nil {
		do()
		return h.state("")
	}
	ctx, end := context.WithCancel(h.t.Context())
	defer end()
	if verb == "interrupted" {
		end()
		return h.call(ctx, rest)
	}
	return h.call(ctx, step)
}

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func going(name string) *corev1.PersistentVolumeClaim {
	c := claim(name)
	c.DeletionTimestamp, c.Finalizers = ptr.To(metav1.Now()), []string{"kubernetes.io/pvc-protection"}
	return c
}

// podAt has a Pod of a node wait, with the name that one of this host has.
func (h *host) podAt(dir, node string, _ bool) {
	pod := doors.PodAtPath("default", "data", dir, node, decide.BindOptions{})
	pod.Name = doors.PodAtPath("default", "data", dir, "one", decide.BindOptions{}).Name
	h.api.Put(mountedIs(corev1.ConditionFalse, pod))
}

// call calls a program.
func (h *host) call(ctx context.Context, line string) string {
	var out bytes.Buffer
	words := strings.Fields(line)
	status := Run(ctx, h.program(&out), words[0], words[1:])
	if h.late > 0 && h.looks <= h.late {
		h.t.Error("what the API says was believed before the mount was seen")
	}
	return h.state(strings.TrimSpace(fmt.Sprint(status, " ", out.String())))
}

// state is what there is to see.
func (h *host) state(said string) string {
	all := []string{said}
	claims, err := h.api.CoreV1().PersistentVolumeClaims("").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, c := range claims.Items {
		if size := c.Spec.Resources.Requests.Storage(); !size.IsZero() {
			all = append(all, fmt.Sprintf("claim %s of %s, class %s", c.Name, size, *c.Spec.StorageClassName))
		}
	}
	pods, err := h.api.CoreV1().Pods("").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	names := []string{h.dir, "DIR", doors.Stage(h.dir), "STAGE"}
	for _, p := range pods.Items {
		text, err := json.Marshal(p.Annotations)
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("pod %s of %s on %s %s", p.UID, doors.ClaimOf(&p), p.Spec.NodeName, text))
		names = append(names, p.Name, "POD")
	}
	for _, at := range slices.Sorted(maps.Keys(h.mounted)) {
		all = append(all, "mounted at "+at)
	}
	if len(h.noted) > 0 {
		all = append(all, fmt.Sprint("noted ", h.noted))
	}
	h.noted = nil
	return strings.TrimPrefix(strings.NewReplacer(names...).Replace(strings.Join(all, "; ")), "; ")
}
