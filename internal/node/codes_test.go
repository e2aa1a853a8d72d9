package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// mishap is one call that fails, before or after the work.
type mishap struct {
	call  string
	code  codes.Code
	after bool
}

func (m mishap) name() string {
	return strings.ToLower(fmt.Sprintf("%s-%d-%v", m.call, m.code, m.after))
}

func (m mishap) err() error {
	err := status.Error(m.code, "mishap "+m.name())
	if m.after {
		return afterwards{err}
	}
	return err
}

func mishaps(calls ...string) []mishap {
	var out []mishap
	for _, call := range calls {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			out = append(out, mishap{call, code, false}, mishap{call, code, true})
		}
	}
	return out
}

// calls is what the driver is asked from the first to the last, when only this
// goes wrong, once: what has gone well is not asked again, nor what CSI
// forbids to ask again, nor what is seen to be done.
func (m mishap) calls(seen bool) string {
	all := []string{"stage", "publish", "unpublish", "unstage"}
	if m.call == "expand" {
		all = slices.Insert(all, 2, "expand")
	}
	var out []string
	for _, call := range all {
		out = append(out, call)
		if call == m.call && !m.final() && !(seen && m.done()) {
			out = append(out, call)
		}
	}
	return strings.Join(out, " ")
}

// final says that a growth is given up, or is not tried again before the next
// mount.
func (m mishap) final() bool {
	return m.call == "expand" && slices.Contains(
		[]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.FailedPrecondition}, m.code)
}

// done says that a driver that knows no volume any more has nothing mounted
// either.
func (m mishap) done() bool {
	return m.after && m.code == codes.NotFound && (m.call == "unpublish" || m.call == "unstage")
}

// believers are the two ways in which an agent and a driver can be: the one
// believes the other, or looks at the mount table.
func believers(t *testing.T, test func(*testing.T, *world, *fakeDriver)) {
	for name, believes := range map[string]bool{"the driver is believed": true, "the mount table is": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			d := newFakeDriver(driverName, w.dir)
			if !believes {
				t.Cleanup(w.detachAll)
				w.tune = verifyMounts
				d.mount, d.mountStage = tmpfs, tmpfs
			}
			test(t, w, d)
			w.empty()
			if left := d.leftover(); left != "" {
				t.Errorf("left at the driver: %s", left)
			}
			if points, err := mount.Below(w.dir); err != nil || len(points) > 0 {
				t.Errorf("mounts: %v, %v", points, err)
			}
		})
	}
}

// TestEveryCode: whatever code a driver answers, at whatever call, with the work
// done or not: the one whom it keeps waiting is told why and who is next, it
// goes on, nothing is asked or mounted twice that went well, and nothing is left
// at the end.
func TestEveryCode(t *testing.T) {
	t.Parallel()
	believers(t, func(t *testing.T, w *world, d *fakeDriver) {
		all := mishaps("stage", "publish", "unpublish", "unstage", "expand")
		d.setHook(once(all))
		d.start(t)
		w.run()
		w.registered(driverName)
		for _, m := range all {
			w.addVolume(driverName, m.name())
			if m.call == "expand" {
				w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), m.name(), types.MergePatchType,
					[]byte(`{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`),
					metav1.PatchOptions{}, "status"))
			}
			w.pod(m.name(), m.name())
		}
		for _, m := range all {
			w.awaitCondition(m.name(), corev1.ConditionTrue, "v-"+m.name()+"=")
		}
		w.eachOnce()
		for _, m := range all {
			w.terminate(m.name())
		}
		for _, m := range all {
			w.awaitDeletion(m.name())
		}
		w.empty()
		for _, m := range all {
			seen := d.mount != nil
			if got := d.callsFor("h-" + m.name()); got != m.calls(seen) {
				t.Errorf("%+v: calls are %s, not %s", m, got, m.calls(seen))
			}
			if !seen || !m.done() {
				w.wasTold(m)
			}
		}
	})
}

// callsFor returns the calls for one volume.
func (d *fakeDriver) callsFor(handle string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, c := range d.calls {
		call, rest, _ := strings.Cut(c, ":")
		if of, _, _ := strings.Cut(rest, ":"); of == handle {
			out = append(out, call)
		}
	}
	return strings.Join(out, " ")
}

// eachOnce says where something is mounted over what is mounted.
func (w *world) eachOnce() {
	w.t.Helper()
	points, err := mount.Below(w.dir)
	w.must(nil, err)
	at := map[string]int{}
	for _, p := range points {
		if at[p.Path]++; at[p.Path] > 1 {
			w.t.Errorf("%d mounts at %s", at[p.Path], p.Path)
		}
	}
}

// once has the driver fail each mishap's call one time.
func once(all []mishap) func(context.Context, string) error {
	var mu sync.Mutex
	seen, again := map[string]bool{}, always(all)
	return func(ctx context.Context, what string) error {
		err := again(ctx, what)
		mu.Lock()
		defer mu.Unlock()
		if err == nil || seen[what] {
			return nil
		}
		seen[what] = true
		return err
	}
}

// always has the driver fail each mishap's call.
func always(all []mishap) func(context.Context, string) error {
	byHandle := map[string]mishap{}
	for _, m := range all {
		byHandle["h-"+m.name()] = m
	}
	return func(_ context.Context, what string) error {
		call, rest, _ := strings.Cut(what, ":")
		handle, _, _ := strings.Cut(rest, ":")
		if m, ok := byHandle[handle]; ok && m.call == call {
			return m.err()
		}
		return nil
	}
}

// wasTold looks for the event about a mishap at whom it kept waiting.
func (w *world) wasTold(m mishap) {
	w.t.Helper()
	kind, name, reason := "Pod", m.name(), map[string]volume.Reason{
		"stage": volume.ReasonFailedMount, "publish": volume.ReasonFailedMount, "unpublish": volume.ReasonFailedUnmount,
		"unstage": volume.ReasonFailedUnmount, "expand": volume.ReasonFailedNodeResize,
	}[m.call]
	next := "node n1"
	if m.code == codes.DeadlineExceeded {
		next = driverName // to call it once more is not what is missing
	}
	next = nextAfter(m.code, next)
	switch m.call {
	case "unstage":
		kind, name = "PersistentVolume", "pv-"+m.name()
	case "expand":
		w.heard("PersistentVolumeClaim", name, string(reason), m.code.String()+": mishap "+m.name(), next)
	}
	w.heard(kind, name, string(reason), m.code.String()+": mishap "+m.name(), next)
}

// nextAfter returns who acts next after a code: the user, if the same call would fail again.
func nextAfter(code codes.Code, repeats string) string {
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return "user"
	default:
		return repeats
	}
}

// TestEveryCodeOfTheNodesName: whatever a driver answers to the first question
// which node it is on, the Node tells it, and the driver is registered when it
// knows, once.
func TestEveryCodeOfTheNodesName(t *testing.T) {
	t.Parallel()
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			w := newWorld(t)
			d := newFakeDriver(driverName, w.dir)
			d.setHook(func(context.Context, string) error {
				if len(d.answers()) == 0 {
					return status.Error(code, "mishap")
				}
				return nil
			})
			d.start(t)
			w.run()
			w.heard("Node", "n1", "RegistrationRefused", "code = "+code.String()+" desc = mishap",
				nextAfter(code, "node n1"))
			w.registered(driverName)
			if got := d.history(); got != "info info" {
				t.Errorf("calls: %s", got)
			}
		})
	}
}

// TestUndoneAfterEveryCode: a driver does the work and never says so, and the
// Pod goes: all is undone, unless the driver said plainly that it did not begin
// and nothing shows that it did.
func TestUndoneAfterEveryCode(t *testing.T) {
	t.Parallel()
	plain := []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated,
	}
	believers(t, func(t *testing.T, w *world, d *fakeDriver) {
		all := slices.DeleteFunc(mishaps("stage", "publish"), func(m mishap) bool {
			return !m.after || d.mount == nil && slices.Contains(plain, m.code)
		})
		d.setHook(always(all))
		d.start(t)
		w.run()
		w.registered(driverName)
		for _, m := range all {
			w.addVolume(driverName, m.name())
			w.pod(m.name(), m.name())
			w.awaitCondition(m.name(), corev1.ConditionFalse, "mishap "+m.name())
			w.terminate(m.name())
		}
		for _, m := range all {
			w.awaitDeletion(m.name())
		}
	})
}
