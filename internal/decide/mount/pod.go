package mount

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Use is one volume of a Pod, with its claim and its PersistentVolume if they exist.
type Use struct {
	Pod *corev1.Pod
	// Name is the volume's name within the Pod.
	Name string
	// ClaimName is the claim's name; Ephemeral says that the claim is created for this Pod.
	ClaimName string
	Ephemeral bool
	ReadOnly  bool
	// Inline says that the Pod itself names the volume: there is no claim.
	Inline bool
	// Claim and Volume are nil when they do not exist.
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// Missing says why a use has no volume that can be mounted; its reason is empty if it has. Every
// reference is checked in both directions and by UID, because names are reused.
func (u Use) Missing() volume.Because {
	name := u.ClaimName
	switch {
	case u.Inline:
		return volume.Because{}
	case u.Claim == nil:
		return u.noClaim()
	case u.Ephemeral && !metav1.IsControlledBy(u.Claim, u.Pod):
		return volume.Sayf(volume.ReasonClaimMisbound, volume.User(), "claim %s was not created for this Pod", name)
	case u.Claim.Spec.VolumeName == "" || u.Claim.Status.Phase != corev1.ClaimBound:
		return volume.Sayf(volume.ReasonWaitForBind, volume.Controller("binder"), "claim %s is not bound yet", name)
	case u.Volume == nil:
		return volume.Sayf(volume.ReasonVolumeMissing, volume.User(),
			"claim %s is bound to volume %s, which does not exist", name, u.Claim.Spec.VolumeName)
	case u.Volume.Spec.ClaimRef == nil || u.Volume.Spec.ClaimRef.UID != u.Claim.UID:
		return volume.Sayf(volume.ReasonClaimMisbound, volume.Controller("binder"),
			"volume %s is not bound to claim %s", u.Volume.Name, name)
	case u.Volume.Spec.CSI == nil:
		return volume.Sayf(volume.ReasonFailedMount, volume.User(), "volume %s is not a CSI volume", u.Volume.Name)
	}
	return volume.Because{}
}

func (u Use) noClaim() volume.Because {
	if u.Ephemeral {
		return volume.Sayf(volume.ReasonClaimMissing, volume.Controller("ephemeral"),
			"claim %s is being created for this Pod", u.ClaimName)
	}
	return volume.Sayf(volume.ReasonClaimMissing, volume.User(), "there is no claim %s", u.ClaimName)
}

// Place is the state of one volume of a Pod.
type Place struct {
	// Name is the volume's name within the Pod, Path where it is mounted.
	Name, Path string
	// Served says that it is mounted there, and at the host path too.
	Served bool
	// Because is why not; the newest that is known.
	Because volume.Because
}

// Pod returns where the volumes of a Pod are mounted, by their names in the Pod, or nil while one is missing. The
// message of its condition has the paths, or the reason for the first missing volume. refused is an error of the Pod
// itself, or empty.
func Pod(refused string, places []Place) (map[string]string, volume.Because) {
	if refused != "" {
		return nil, volume.Say(volume.ReasonFailedMount, volume.User(), refused)
	}
	if len(places) == 0 {
		return map[string]string{}, volume.Say(volume.ReasonMounted, volume.Actor{}, "no volumes")
	}
	paths := map[string]string{}
	var at []string
	for _, p := range places {
		switch {
		case !p.Served && (p.Because.Reason == "" || p.Because.Reason == volume.ReasonMounted):
			return nil, volume.Sayf(volume.ReasonMounting, volume.Actor{}, "volume %s is being mounted", p.Name)
		case !p.Served:
			return nil, p.Because
		}
		paths[p.Name] = p.Path
		at = append(at, p.Name+"="+p.Path)
	}
	return paths, volume.Say(volume.ReasonMounted, volume.Actor{}, strings.Join(at, ", "))
}

// CallInFlight is the reason while a driver's call is in flight. It is empty for a step that delays no Pod.
func CallInFlight(f Facts, v Verb) volume.Because {
	say := func(r volume.Reason, method string) volume.Because {
		return volume.Sayf(r, volume.Driver(f.Driver), "driver %s was called to %s volume %s on node %s (%s) and has not "+
			"answered yet", f.Driver, v, f.Volume, f.Node, method)
	}
	switch v {
	case Stage:
		return say(volume.ReasonMounting, "NodeStageVolume")
	case Publish:
		return say(volume.ReasonMounting, "NodePublishVolume")
	case Unpublish:
		return say(volume.ReasonUnmounting, "NodeUnpublishVolume")
	case Unstage:
		return say(volume.ReasonUnmounting, "NodeUnstageVolume")
	default:
		return volume.Because{}
	}
}

// Busy is the reason of a volume that waits for its driver's calls for other volumes.
func Busy(driver, node string) volume.Because {
	return volume.Sayf(volume.ReasonDriverBusy, volume.Driver(driver), "driver %s has reached its limit of concurrent "+
		"calls on node %s; waiting for a slot", driver, node)
}

// Failed explains a failed step with the text of its error. If the text does not show who acts next, next does.
func Failed(v Verb, node, cause string, next volume.Actor) volume.Because {
	return failed(v, node, volume.AnswerIn(cause), next)
}

func failed(v Verb, node string, a volume.Answer, next volume.Actor) volume.Because {
	reason := volume.ReasonFailedMount
	switch v {
	case Expand:
		reason = volume.ReasonFailedNodeResize
	case Unbind, Unpublish, Unstage, UnmarkInUse, Drop:
		reason = volume.ReasonFailedUnmount
	default:
	}
	b := a.Because(reason, next, a.Text)
	b.Next = cmp.Or(whoClearsHost(a.Text, node), b.Next)
	return b
}

// whoClearsHost returns who acts next if the cause is a problem of the node's host, according to the kernel's error
// text, which drivers do not translate; zero for other problems.
func whoClearsHost(text, node string) volume.Actor {
	for _, words := range []string{"no space left on device", "read-only file system"} {
		if strings.Contains(text, words) {
			return volume.Administrator(node)
		}
	}
	for _, words := range []string{"device or resource busy", "target is busy"} {
		if strings.Contains(text, words) {
			return volume.MountUser(node)
		}
	}
	return volume.Actor{}
}

// Lifecycle says why a driver does not support ephemeral or persistent volumes; empty if it does. known says whether
// the CSIDriver object exists, and modes is its list.
func Lifecycle(driver string, known bool, modes []storagev1.VolumeLifecycleMode, ephemeral bool) string {
	want := storagev1.VolumeLifecyclePersistent
	if ephemeral {
		want = storagev1.VolumeLifecycleEphemeral
	}
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	switch {
	case slices.Contains(modes, want), !known && !ephemeral:
		return ""
	case !known:
		return fmt.Sprintf("driver %s has no CSIDriver object, which has to list the volume mode %s", driver,
			want)
	default:
		return fmt.Sprintf("driver %s does not support volumes of mode %s: its CSIDriver object lists %v", driver, want,
			modes)
	}
}

// Health is the reason of a volume with problems, or of one that is healthy again if there are none.
func Health(pv, node, ailments string, next volume.Actor) volume.Because {
	if ailments == "" {
		return volume.Sayf(volume.ReasonHealthy, volume.Actor{}, "volume %s is healthy again on node %s", pv, node)
	}
	b := volume.Sayf(volume.ReasonUnhealthy, next, "volume %s on node %s: %.800s", pv, node, ailments)
	b.Object = "pv/" + pv
	return b
}

// InvalidName is the reason of a name that cannot be part of a path.
func InvalidName(what, name string) volume.Because {
	return volume.Sayf(volume.ReasonFailedMount, volume.User(),
		"the %s, %.100q, cannot be the name of a directory", what, name)
}

// Full is the reason of a Pod that fails because its node has reached a driver's attach limit.
func Full(pv, driver, node, cause string) volume.Because {
	return volume.Sayf(volume.ReasonAttachLimit, volume.User(),
		"node %s cannot have more volumes of driver %s, volume %s is not attached: %.500s", node, driver, pv, cause)
}

// Expanded is the reason of a volume that was expanded.
func Expanded(pv, node string) volume.Because {
	return volume.Sayf(volume.ReasonNodeResized, volume.Actor{}, "volume %s has its new size on node %s", pv, node)
}

// GroupIncomplete is the reason of a volume that was mounted although not all of its files have the Pod's group.
func GroupIncomplete(pv, node string, group, count int, first string) volume.Because {
	return volume.Sayf(volume.ReasonGroupIncomplete, volume.User(), "volume %s is mounted on node %s, and files that "+
		"could not be given to the Pod's fsGroup %d are unchanged: %d, the first is %s", pv, node, group, count, first)
}

// RecordUnreadable is the reason of a journal record that cannot be read.
func RecordUnreadable(path string) volume.Because {
	return volume.Sayf(volume.ReasonJournalTorn, volume.User(), "the journal record %s cannot be read, and what it "+
		"recorded about a volume was searched for in the API and the mount table: check the disk for damage", path)
}

// Refused is the reason of a driver that is not registered. One that has not said its name has that of its socket.
func Refused(socket, driver, cause string, next volume.Actor) volume.Because {
	b := volume.Sayf(volume.ReasonRegistrationRefused, next,
		"the driver that registers at %s is not registered: %s", socket, cause)
	b.Object = "csidriver/" + driver
	return b
}

// NotRun is the reason for a driver of a node, or a file about one, that cannot be used; driver is empty if the file
// does not name it.
func NotRun(about, driver, cause, node string) volume.Because {
	b := volume.Sayf(volume.ReasonRegistrationRefused, volume.Administrator(node),
		"%s cannot be used: %.900s", about, cause)
	if driver != "" {
		b.Object = "csidriver/" + driver
	}
	return b
}

// maxMountsNamed is how many paths one reason names.
const maxMountsNamed = 5

// UnknownMounts is the reason of mounts whose volume is unknown.
func UnknownMounts(paths []string) volume.Because {
	named, more := paths[:min(len(paths), maxMountsNamed)], ""
	if n := len(paths) - len(named); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return volume.Sayf(volume.ReasonMountUnknown, volume.User(),
		"it is not known which volume is mounted at %.800s%s, so it stays mounted. Restore its API objects and start the "+
			"agent again, or let its driver unmount it, or unmount it", strings.Join(named, ", "), more)
}
