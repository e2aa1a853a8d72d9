package mount

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func say(b volume.Because) string {
	return fmt.Sprintf("%s: %s -> %s", b.Reason, b.Message, b.Next)
}

// TestReasons writes down what people read about Pods, one line for each case.
func TestReasons(t *testing.T) {
	var got strings.Builder
	line := func(what string, b volume.Because) { fmt.Fprintf(&got, "%-32s %s\n", what, say(b)) }
	uses(line)
	pods(line)
	for _, v := range []Verb{Stage, Publish, Republish, Bind, Expand, Unbind, Unpublish, Unstage} {
		line("failed to "+string(v), Failed(v, "n", "the cause", volume.NodeAgent("n")))
	}
	for _, c := range []struct {
		what             string
		known, ephemeral bool
		modes            []storagev1.VolumeLifecycleMode
	}{
		{"no object", false, false, nil},
		{"no object, inline", false, true, nil},
		{"nothing said", true, false, nil},
		{"nothing said, inline", true, true, nil},
		{"inline only", true, false, []storagev1.VolumeLifecycleMode{"Ephemeral"}},
		{"both", true, true, []storagev1.VolumeLifecycleMode{"Persistent", "Ephemeral"}},
	} {
		fmt.Fprintf(&got, "%-32s %s\n", "lifecycle: "+c.what, Lifecycle("d", c.known, c.modes, c.ephemeral))
	}
	for _, v := range []Verb{
		MarkInUse, CheckAttached, Stage, Publish, Republish, Bind, Expand, Unbind, Unpublish, Unstage, UnmarkInUse, Drop,
	} {
		line("called to "+string(v), CallInFlight(Facts{Driver: "d", Handle: "h", Volume: "pv", Node: "n"}, v))
	}
	line("ill", Health("pv", "n", "DEGRADED OnePath", volume.Driver("d")))
	line("well again", Health("pv", "n", "", volume.Driver("d")))
	line("odd", InvalidName("name of the volume", "../x"))
	line("full", Full("pv", "d", "n", "the cause"))
	line("grown", Expanded("pv", "n"))
	line("fsGroup", GroupIncomplete("pv", "n", 7, 2, `"f": operation not permitted`))
	line("torn", RecordUnreadable("/j/x"))
	line("unknown", UnknownMounts([]string{"/a", "/b"}))
	line("many unknown", UnknownMounts([]string{"/1", "/2", "/3", "/4", "/5", "/6", "/7"}))
	line("busy", Busy("d", "n"))
	line("refused", Refused("/r/x.sock", "x", "the cause", volume.User()))
	failed := func(next volume.Actor) volume.Because { return Failed(Unpublish, "n", "the cause", next) }
	user, copied := Holder{PID: 7, Command: "postgres", Use: "an open file"},
		Holder{PID: 9, Command: "sh", Use: "a copy", Namespace: "mnt:[3]"}
	line("not unmounted, used by nobody", InUse(failed(volume.NodeAgent("n")), "n", nil))
	line("not unmounted, used", InUse(failed(volume.NodeAgent("n")), "n", []Holder{user, copied}))
	line("not unmounted, driver hangs", InUse(failed(volume.Driver("d")), "n", []Holder{user}))
	golden.Equal(t, "testdata/reasons/pods.txt", got.String())
}

// TestWhoActsAfterFailure: who has to act follows from the cause of a failure; if it
// does not, it is who tries again.
func TestWhoActsAfterFailure(t *testing.T) {
	for cause, want := range map[string]volume.Actor{
		"NodePublishVolume by driver d: Internal: on fire":             volume.NodeAgent("n"),
		"NodePublishVolume by driver d: NotFound: no such volume":      volume.User(),
		"write journal record of d^h: no space left on device":         volume.Administrator("n"),
		"mkdir /t: read-only file system":                              volume.Administrator("n"),
		"NodeUnpublishVolume by driver d: Internal: target is busy":    volume.MountUser("n"),
		"unmount /t: device or resource busy":                          volume.MountUser("n"),
		"NodeStageVolume by driver d: NotFound: target is busy by a p": volume.MountUser("n"),
		"NodeStageVolume by driver d: Unavailable: the array restarts": volume.NodeAgent("n"),
		"connection refused": volume.NodeAgent("n"),
	} {
		if got := Failed(Publish, "n", cause, volume.NodeAgent("n")).Next; got != want {
			t.Errorf("%s: next is %q, want %q", cause, got, want)
		}
	}
}

func uses(line func(string, volume.Because)) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "2"}}
	bound := claim.DeepCopy()
	bound.Spec.VolumeName, bound.Status.Phase = "pv", corev1.ClaimBound
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{UID: "other"}
	mine := pv.DeepCopy()
	mine.Spec.ClaimRef.UID = "2"
	good := mine.DeepCopy()
	good.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	u := Use{Pod: pod, Name: "data", ClaimName: "c"}
	line("no claim", u.Missing())
	line("no claim yet", Use{Pod: pod, Name: "data", ClaimName: "p-data", Ephemeral: true}.Missing())
	u.Claim, u.Ephemeral = claim, true
	line("a stranger's claim", u.Missing())
	u.Claim = bound.DeepCopy()
	u.Claim.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1", Controller: ptr.To(true)},
	}
	line("its own claim", u.Missing())
	u.Claim, u.Ephemeral = claim, false
	line("not bound", u.Missing())
	u.Claim = bound.DeepCopy()
	u.Claim.Status.Phase = corev1.ClaimPending
	line("being bound", u.Missing())
	u.Claim.Spec.VolumeName, u.Claim.Status.Phase = "", corev1.ClaimBound
	line("bound to nothing", u.Missing())
	u.Claim = bound
	line("no volume", u.Missing())
	u.Volume = pv
	line("another claim's volume", u.Missing())
	u.Volume = pv.DeepCopy()
	u.Volume.Spec.ClaimRef = nil
	line("nobody's volume", u.Missing())
	u.Volume = mine
	line("not CSI", u.Missing())
	u.Volume = good
	line("all is there", u.Missing())
	line("inline", Use{Pod: pod, Name: "data", Inline: true}.Missing())
}

func pods(line func(string, volume.Because)) {
	waits := volume.Because{
		Reason: volume.ReasonWaitForAttach, Message: "not attached", Next: volume.Controller("attacher"),
	}
	served := Place{Name: "data", Path: "/d/data", Served: true}
	for _, c := range []struct {
		what    string
		refused string
		places  []Place
	}{
		{"pod without volumes", "", nil},
		{"pod with all", "", []Place{served, {Name: "cache", Path: "/d/cache", Served: true}}},
		{"pod that waits", "", []Place{served, {Name: "cache", Because: waits}}},
		{"pod nobody looked at", "", []Place{{Name: "cache"}}},
		{"pod whose mount was lost", "", []Place{{Name: "cache", Because: volume.Because{Reason: volume.ReasonMounted}}}},
		{"pod that asks too much", "the cause", []Place{served}},
	} {
		paths, b := Pod(c.refused, c.places)
		line(fmt.Sprintf("%s: %v %v", c.what, paths != nil, paths), b)
	}
}
