package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/etcd"
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

// examine checks the data directory before anything in it is created or changed: an empty
// control plane would unmount all volumes that it does not know. It returns whether the
// directory has objects.
func (s *Server) examine(ctx context.Context) (objects bool, err error) {
	type answer struct {
		exists bool
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		exists, err := etcd.Check(s.place("etcd"))
		answers <- answer{exists, err}
	}()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case a := <-answers:
		if a.err != nil {
			return true, s.judge(a.err)
		}
		return a.exists, s.missing(a.exists)
	}
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
		return backup.KeepStopped(ctx, backup.Options{DataDir: s.dir.Path, Version: o.Version, Reason: backup.Upgrade}, file)
	})
	if err == nil && from != "" && objects && o.Log != nil {
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
