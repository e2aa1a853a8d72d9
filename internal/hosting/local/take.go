package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// use is how a node uses a volume's device.
type use struct {
	// node is the digest of the node's id, how that of the filesystem's type and the mount options, which the kernel
	// takes from the first of several mounts and ignores in the others.
	node, how string
	// alone says that the volume was promised to a single writer.
	alone bool
}

func (n *node) useOf(fsType string, c *csipb.VolumeCapability) use {
	options := slices.Sorted(slices.Values(c.GetMount().GetMountFlags()))
	return use{
		node: digest(n.id)[:noteDigest], how: digest(fsType + " " + strings.Join(options, ","))[:noteDigest],
		alone: c.GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	}
}

const (
	// notePrefix begins the notes that this driver leaves with devices, noteDigest is the length of the digests in them.
	notePrefix, noteDigest = "volplane", 16
	// severalNodes replaces the node if a device was used by more than one, or by an unknown one.
	severalNodes = "several"
)

// takeTries is how often a device is looked up again after its last user has just released it.
const takeTries = 10

// note is the text stored with a device: its user, and how its filesystem was mounted.
func (u use) note() string { return notePrefix + ":" + u.node + ":" + u.how }

// readNote reads a note; ok is false for one that this driver has not written.
func readNote(text string) (u use, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 || parts[0] != notePrefix {
		return use{node: severalNodes}, false
	}
	return use{node: parts[1], how: parts[2]}, true
}

// take creates the device of a locked volume or takes the existing one. If an unstage could not complete, because a
// process still has the device, this node takes the device again: a clean-up that cannot complete does not block the
// volume. A second device over the image would be a second filesystem with the same blocks.
func (p *pool) take(ctx context.Context, v record, u use) (string, error) {
	image := p.image(volumes, v.ID)
	for try := 1; ; try++ {
		device, err := p.loops.AttachNoted(image, u.note(), false)
		if err != nil {
			return "", err
		}
		err = p.loops.Keep(device, image, func(s mount.LoopState) (string, error) {
			shown := false
			if s.Claimed {
				at, err := p.shownAt(device)
				if err != nil {
					return "", err
				}
				shown = at != ""
			}
			return u.again(s, shown)
		})
		switch {
		case err == nil:
			return device, nil
		case errors.Is(err, errOthers):
			return "", p.stillOpen(ctx, v.ID, device)
		case !errors.Is(err, mount.ErrLoopGone) || try == takeTries:
			return "", err
		}
	}
}

// errOthers says that a device is in use in a way that excludes this use.
var errOthers = errors.New("it is in use otherwise")

// again decides whether an existing device can be used, and returns the note for it. shown means that a claimed device
// is mounted where the driver sees it.
func (u use) again(s mount.LoopState, shown bool) (note string, err error) {
	last, ours := readNote(s.Note)
	// A mount that the driver does not see was unmounted by it: it is the rest of a use that has ended for Kubernetes.
	rest := s.AutoClear || s.Claimed && !shown && ours
	switch {
	case !rest:
	case last.node != u.node, u.alone, s.Claimed && !shown && last.how != u.how:
		// The rest may be of a node that was detached by force, of the other writer, or of a filesystem with other options.
		return "", errOthers
	}
	if last.node != u.node {
		last.node = severalNodes
	}
	if !s.Claimed {
		last.how = u.how
	}
	return last.note(), nil
}

// stillOpen is the error of an operation that has to wait for the users of a device. It names one.
func (p *pool) stillOpen(ctx context.Context, id, device string) error {
	who := "a process"
	// Without an answer no process is named.
	if found, err := p.search.HoldersOf(ctx, device); err == nil && len(found) > 0 {
		who = names(found)
	}
	return status.Errorf(codes.FailedPrecondition, "volume %s: %s still has %s open; end that first", id, who, device)
}

func names(holders []mount.Holder) string {
	var out []string
	for _, h := range holders {
		if h.PID == 0 {
			out = append(out, fmt.Sprintf("%.200s", h.Use))
			continue
		}
		text := fmt.Sprintf("process %d (%.32s; %s", h.PID, h.Command, h.Use)
		if h.Namespace != "" {
			text += " in mount namespace " + h.Namespace
		}
		out = append(out, text+")")
	}
	return strings.Join(out, ", ")
}

// thawPatience is how long one try to lock a volume takes while another driver copies it.
const thawPatience = time.Minute

// thawAll thaws filesystems that a killed driver has left frozen: those of volumes that are not locked, because a
// driver holds the lock for as long as it has the filesystem frozen, and the kernel releases the lock of a killed one.
// A locked volume is in use by another driver, and is thawed when that driver has finished. stop ends the wait for
// those.
func thawAll(ctx context.Context, p *pool) (stop func(), err error) {
	all, err := p.list(volumes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var later sync.WaitGroup
	for _, v := range all {
		device, err := p.loops.Find(p.image(volumes, v.ID))
		if err != nil || device == "" {
			continue
		}
		if errors.Is(p.thaw(ctx, v.ID, 0), errBusy) {
			later.Go(func() {
				for ctx.Err() == nil && errors.Is(p.thaw(ctx, v.ID, thawPatience), errBusy) {
				}
			})
		}
	}
	return func() { cancel(); later.Wait() }, nil
}

// thaw thaws the filesystem of a volume once no operation holds the volume's lock; errBusy if that takes longer than
// the limit.
func (p *pool) thaw(ctx context.Context, id string, limit time.Duration) error {
	_, release, err := p.hold(ctx, volumes, id, unix.LOCK_EX, limit)
	if err != nil {
		return err
	}
	defer release()
	device, err := p.loops.Find(p.image(volumes, id))
	if err != nil || device == "" {
		return err
	}
	target, err := p.mountedAt(device)
	if err == nil && target != "" {
		mount.Thaw(target)
	}
	return err
}

// refuseRaw refuses a volume that is in use as a raw device: nothing can hold back its writes while others are copied.
func (p *pool) refuseRaw(v record, image string) error {
	device, err := p.loops.Find(image)
	if err != nil || device == "" {
		return err
	}
	mounted, err := p.mountedAt(device)
	if err != nil || mounted != "" {
		return err
	}
	at, err := p.shownAt(device)
	if err == nil && at != "" {
		err = status.Errorf(codes.FailedPrecondition, "volume %s is in use as a raw device at %s, and its writes cannot be "+
			"held back while others are copied; stop its Pods, or take it out of the group", v.ID, at)
	}
	return err
}
