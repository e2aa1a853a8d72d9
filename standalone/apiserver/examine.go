package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// ErrLost is the error of a data directory with a missing part that other parts prove to
// have existed.
var ErrLost = errors.New("lost")

// Descriptions of damage.
const (
	objectsAre = "what the API server keeps: claims, volumes, who uses them"
	keysAre    = "the authority that signs for nodes, users and service accounts"
)

// place returns a path in the data directory.
func (s *Server) place(name string) string { return filepath.Join(s.dir.Path, name) }

// examine checks the data directory before anything in it is created or changed: an empty control plane would cause all
// unknown volumes to be unmounted.
func (s *Server) examine(ctx context.Context, o Options) (found etcd.State, err error) {
	if !o.External.IsZero() {
		return found, nil // connect examines the store
	}
	type answer struct {
		found etcd.State
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		found, err := etcd.Check(s.place("etcd"))
		answers <- answer{found, err}
	}()
	select {
	case <-ctx.Done():
		return found, context.Cause(ctx)
	case a := <-answers:
		if a.err != nil {
			return a.found, s.judge(a.err)
		}
		return a.found, s.missing(a.found.Exists)
	}
}

// recognize restores the store as if from a backup if it lacks what an earlier process has recorded: it was replaced by
// an older or a different etcd, and an API without the newest Pods would cause their volumes to be unmounted.
func (s *Server) recognize(ctx context.Context, o Options, found etcd.State) error {
	// The result of a restore differs from the record until the API shows that it was restored.
	if _, pending, err := backup.Pending(s.dir.Path); err != nil || pending || !found.Exists {
		return err
	}
	recorded, err := etcd.Recorded(s.place(datadir.Record))
	if err != nil || !found.Lacks(recorded) {
		return err
	}
	o.step("restoring the older store that was put in the place of the newer one")
	b := backup.Options{DataDir: s.dir.Path, Version: o.Version}
	r, err := backup.RestoreFound(ctx, b, recorded, time.Now())
	if err != nil {
		return fmt.Errorf("%s is an older store than the one of %s, or another one, and cannot be restored: %w",
			s.place("etcd"), recorded.At.Format(time.RFC3339), err)
	}
	if o.Log != nil {
		o.Log.Warn("etcd in the data directory is an older store than the one that was used last, or another one: it is "+
			"treated as a restored backup, and nothing is unmounted, detached or deleted until volplane restore --accept; "+
			"to go back, stop volplane, put the newer one in its place, or run volplane restore FILE with a newer backup",
			"used", recorded.At, "recorded", recorded.Revision, "found", found.Revision,
			"replaced", r.Replaced, "backup", r.From)
	}
	return nil
}

// settle backs up the data of another version, and restores a store that lacks something.
func (s *Server) settle(ctx context.Context, o Options, found etcd.State) error {
	if !o.External.IsZero() {
		return nil // connect reports it, once it knows the store
	}
	if err := s.upgrade(ctx, o, found.Exists); err != nil {
		return err
	}
	return s.recognize(ctx, o, found)
}

// upgrade makes and logs a backup if another version has used the directory.
func (s *Server) upgrade(ctx context.Context, o Options, objects bool) error {
	if o.Version == "" {
		return nil
	}
	file := backup.Name(s.dir.Path, backup.Upgrade, time.Now())
	from, err := s.dir.Upgrade(o.Version, func() error {
		if !objects {
			return nil
		}
		err := backup.KeepStopped(ctx, backup.Options{DataDir: s.dir.Path, Version: o.Version, Reason: backup.Upgrade}, file)
		if errors.Is(err, external.ErrBound) {
			// Such a backup cannot be made at all, so a start that required it would never succeed.
			if o.Log != nil {
				o.Log.Warn("another version has used the data directory, and its objects cannot be backed up", "err", err)
			}
			file, err = "", nil
		}
		return err
	})
	if err == nil && from != "" && objects && file != "" && o.Log != nil {
		o.Log.Info("another version has used the data directory: it was backed up before anything is changed", "from", from,
			"to", o.Version, "backup", file)
	}
	return err
}

// missing refuses a data directory that has lost its objects or its keys.
func (s *Server) missing(objects bool) error {
	if used := s.dir.Used(); !objects && used != "" {
		return s.dir.Damaged(objectsAre, fmt.Errorf("%w: %s has no objects, but %s exists", ErrLost, s.place("etcd"), used))
	}
	if _, err := os.Stat(s.place("pki")); objects && errors.Is(err, os.ErrNotExist) {
		return s.dir.Damaged(keysAre, fmt.Errorf("%w: %s, the keys of all identities for the objects in %s, is missing",
			ErrLost, s.place("pki"), s.place("etcd")))
	}
	return nil
}

// judge turns an error about damage into the screen about damage.
func (s *Server) judge(err error) error {
	if errors.Is(err, etcd.ErrDamaged) {
		return s.dir.Damaged(objectsAre, err)
	}
	return err
}
