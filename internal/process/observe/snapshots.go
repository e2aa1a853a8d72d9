package observe

import (
	"cmp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Operations on snapshots, and how they end.
const (
	opCreate         = "CreateSnapshot"
	opCreateAndReady = "CreateSnapshotAndReady"
	opDelete         = "DeleteSnapshot"
	success          = "success"
	cancel           = "cancel"
)

// Snapshot is what is known of a VolumeSnapshot.
type Snapshot struct {
	// UID identifies it.
	UID string
	// Driver is the name of its driver; empty if that is not known.
	Driver string
	// PreProvisioned says that it stands for a snapshot that was taken before.
	PreProvisioned bool
	// Created, Ready and Deleting say how far it is, and Gone that it is not there any more.
	Created, Ready, Deleting, Gone bool
}

// Snapshots measures how long snapshots take, from the changes of their objects.
type Snapshots struct {
	times *prometheus.HistogramVec

	mu sync.Mutex
	// begun holds the operations that have not ended.
	begun map[operation]time.Time
}

type operation struct{ uid, name string }

// Snapshots returns what measures snapshots; nil of a nil Registry. When it is called again, what was begun is
// forgotten.
func (r *Registry) Snapshots() *Snapshots {
	if r == nil {
		return nil
	}
	s := &Snapshots{times: r.snapshots, begun: map[operation]time.Time{}}
	r.Gauge(nameSnapshotsOpen, func(set Set) {
		s.mu.Lock()
		defer s.mu.Unlock()
		set(float64(len(s.begun)))
	})
	return s
}

// Changed receives the state of a snapshot whenever it has changed. An operation that was begun before this
// process saw it is not measured.
func (s *Snapshots) Changed(is Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case is.Gone:
		s.end(is, opDelete, success)
		s.end(is, opCreate, cancel)
		s.end(is, opCreateAndReady, cancel)
	case is.Deleting:
		s.begin(is.UID, opDelete)
	case is.Ready:
		s.end(is, opCreate, success)
		s.end(is, opCreateAndReady, success)
	default:
		s.begin(is.UID, opCreateAndReady)
		if is.Created {
			s.end(is, opCreate, success)
		} else if !is.PreProvisioned {
			s.begin(is.UID, opCreate)
		}
	}
}

func (s *Snapshots) begin(uid, name string) {
	if _, ok := s.begun[operation{uid, name}]; !ok {
		s.begun[operation{uid, name}] = time.Now()
	}
}

func (s *Snapshots) end(is Snapshot, name, status string) {
	at := operation{is.UID, name}
	begin, ok := s.begun[at]
	if !ok {
		return
	}
	delete(s.begun, at)
	kind := "dynamic"
	if is.PreProvisioned {
		kind = "pre-provisioned"
	}
	s.times.WithLabelValues(cmp.Or(is.Driver, "unknown"), name, kind, status).Observe(time.Since(begin).Seconds())
}
