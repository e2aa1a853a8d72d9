package attachdetach_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/controller/attachdetach"
)

// going says whether an attachment is being deleted.
func (w *world) going(v, node string) bool {
	return slices.ContainsFunc(w.all(), func(a storagev1.VolumeAttachment) bool {
		return a.Name == attachment(v, node).Name && a.DeletionTimestamp != nil
	})
}

// TestPatience: how long the controller waits for a node that reports a volume in use which no Pod wants any more, and
// the events in the meantime.
func TestPatience(t *testing.T) {
	const byForce = `"node n1 is out of service, volume a is detached by force", next d.example (1)`
	again := `Pod q Normal: SuccessfulAttachVolume "volume a is attached to node n1", next node n1 (1)`
	forced := []string{"VolumeAttachment a>n1 Warning: Detaching " + byForce, "Node n1 Warning: Detaching " + byForce}
	for name, c := range map[string]struct {
		then func(*world)
		// after is when it is detached; zero is never.
		after time.Duration
		heard []string
	}{
		"it lives":             {func(*world) {}, 0, nil},
		"it is silent":         {func(w *world) { change(w, w.Nodes(), "n1", down) }, patience, forced},
		"it is out of service": {func(w *world) { change(w, w.Nodes(), "n1", outOfService) }, soon, forced},
		"its object is gone":   {func(w *world) { gone(w, w.Nodes(), "n1") }, soon, nil},
		"it was silent":        {func(w *world) { change(w, w.Nodes(), "n1", down); change(w, w.Nodes(), "n1", up) }, 0, nil},
		"it is wanted again": {
			func(w *world) { change(w, w.Nodes(), "n1", down); w.Users.Put(pod("q", "n1", "a")) }, 0, []string{again},
		},
		"it was, and is silent": {func(w *world) {
			change(w, w.Nodes(), "n1", down)
			w.pass(5 * time.Minute)
			w.Users.Put(pod("q", "n1", "a"))
			w.pass(soon)
			gone(w, w.pods(), "q")
		}, 5*time.Minute + patience, append([]string{again}, forced...)},
		"we restart": {func(w *world) { change(w, w.Nodes(), "n1", down); w.pass(5 * time.Minute); w.Restart() }, 5*
			time.Minute + patience, forced},
		"it dies late": {func(w *world) { w.pass(2 * patience); change(w, w.Nodes(), "n1", down) }, 2 * patience, forced},
		"it unmounts":  {func(w *world) { w.pass(time.Minute); w.uses("n1") }, time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.attacher()
				w.uses("n1", "a")
				w.knows("n1", "a")
				begin := time.Now()
				gone(w, w.pods(), "p")
				c.then(w)
				for w.pass(soon); !w.going("a", "n1") && time.Since(begin) < time.Hour; w.pass(soon) {
				}
				if took := time.Since(begin); c.after == 0 && took < time.Hour ||
					c.after > 0 && (took < c.after || took > c.after+10*soon) {
					w.Errorf("detached after %s, want %s", took, c.after)
				}
				w.heard(append([]string{`Pod p Normal: SuccessfulAttachVolume "volume a is attached to node n1", next node n1 (1)`},
					c.heard...)...)
			}, append(bound("a"), node("n1"), pod("p", "n1", "a"))...)
		})
	}
}

// TestForceIsForbidden: without force detach, the controller waits for a silent node until a user ends the wait; one
// event says how.
func TestForceIsForbidden(t *testing.T) {
	inWorld(t, attachdetach.Options{DisableForceDetachOnTimeout: true}, func(w *world) {
		w.attacher()
		w.uses("n1", "a")
		gone(w, w.pods(), "p")
		change(w, w.Nodes(), "n1", down)
		const stuck = ` Warning: StillMounted "volume a is still mounted on node n1, which is not ready, and --disable-force-detach-on-timeout keeps it from being detached by force: ` +
			`it waits until the node is back, or is deleted, or has the taint node.kubernetes.io/out-of-service", next user (1)`
		heard := []string{`Pod p Normal: SuccessfulAttachVolume "volume a is attached to node n1", next node n1 (1)`}
		w.pass(patience - 5*soon)
		w.heard(heard...)
		w.pass(24 * time.Hour)
		change(w, w.Nodes(), "n1", func(n *corev1.Node) {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, unique("b"))
		})
		heard = append(heard, "Node n1"+stuck, "VolumeAttachment a>n1"+stuck)
		w.heard(heard...)
		w.are(attachment("a", "n1", attached))
		change(w, w.Nodes(), "n1", outOfService)
		const byForce = ` Warning: Detaching "node n1 is out of service, volume a is detached by force", next d.example (1)`
		w.heard(append(heard, "Node n1"+byForce, "VolumeAttachment a>n1"+byForce)...)
		w.attacher()
		w.are()
	}, append(bound("a"), node("n1"), pod("p", "n1", "a"))...)
}

// TestPodOnANodeThatIsGone: the Pod's volumes stay attached, because it may still run there, and no more are attached;
// they are detached when the Pod is gone.
func TestPodOnANodeThatIsGone(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		w.attacher()
		gone(w, w.Nodes(), "n1")
		w.Users.Put(pod("q", "n1", "b"))
		w.pass(patience)
		w.are(attachment("a", "n1", attached))
		gone(w, w.pods(), "p")
		w.attacher()
		w.are()
		w.writes("create volumeattachments a>n1", tells("n1", "a"), "delete volumeattachments a>n1 uid")
	}, append(append(bound("a"), bound("b")...), node("n1"), pod("p", "n1", "a"))...)
}
