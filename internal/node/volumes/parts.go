package volumes

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/identity"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// Options says what the volumes of a node are brought and taken away with.
type Options struct {
	// Root is the agent's root directory.
	Root string
	// TrustDrivers lets a driver's answer stand without a look at the mount table.
	TrustDrivers bool
	Client       kubernetes.Interface
	Pods         *kube.Cache[*corev1.Pod]
	Claims       *kube.Cache[*corev1.PersistentVolumeClaim]
	Volumes      cluster.Objects[*corev1.PersistentVolume]
	Drivers      *csi.Set
	Journal      *journal.Journal
	Node         *identity.Node
	Finder       *uses.Finder
	Liveness     *mount.Liveness
	Consumers    Consumers
	Events       *kube.Recorder
	Log          *slog.Logger
	// RetryMin and RetryMax bound the pause before a failed volume is tried again,
	// RepublishEvery is that between two calls for a target of a driver that wants
	// them, LookEvery that between looks at attaches that fail.
	RetryMin, RetryMax, RepublishEvery, LookEvery time.Duration
}

// Consumers are the Pods that wait for volumes.
type Consumers interface {
	// Add has a Pod looked at, by its key: something else is known of its volumes.
	Add(pod string)
	// Begun is told that a driver is called for a volume of a Pod.
	Begun(pod *corev1.Pod)
	// GiveUp ends a Pod that waits for a volume, unless it had all of its own.
	GiveUp(ctx context.Context, pod *corev1.Pod, why volume.Because) error
}

// errNotYet says that something that is no failure is waited for, and that no
// watch will tell when it is there.
var errNotYet = errors.New("not yet")

// parts are what the steps of the work on a volume share.
type parts struct {
	Options
	table       mount.Table
	search      mount.Search
	tokens      tokens
	republishes *republishes
}

// unmountBelow takes away what is mounted at one of the agent's own paths and
// below it.
func (p *parts) unmountBelow(path string) error {
	points, err := p.table.Below(path)
	for _, at := range points {
		err = errors.Join(err, mount.Unmount(at.Path))
	}
	return err
}

// tidy removes directories that nothing is in any more, the innermost first.
// What is not empty stays: nothing is deleted with its content.
func (p *parts) tidy(paths ...string) {
	for _, path := range paths {
		if err := mount.Remove(path); err != nil {
			p.Log.Debug("directory stays", "path", path, "err", err)
			return
		}
	}
}

// tidyTarget removes a target and the directories above it, as far as they are
// the Pod's or the volume's own and nothing is in them.
func (p *parts) tidyTarget(path string) {
	pods, blocks := filepath.Join(p.Root, "pods")+"/", filepath.Join(p.Root, uses.CSIDir, "volumeDevices/publish")+"/"
	paths := []string{path}
	for dir := filepath.Dir(path); strings.HasPrefix(dir, pods) ||
		strings.HasPrefix(dir, blocks); dir = filepath.Dir(dir) {
		paths = append(paths, dir)
	}
	p.tidy(paths...)
}
