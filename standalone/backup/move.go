package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// Moved is what a move has proved by reading both stores.
type Moved struct {
	external.Sum
	// Left is where the objects still are, too.
	Left string
}

// Move moves the objects of a control plane that does not run to a store that others run, or, if none is named, from
// there to an etcd in the data directory. The originals stay where they were.
func Move(ctx context.Context, o Options, to external.Options, now time.Time) (m Moved, err error) {
	dir, err := datadir.Open(o.DataDir)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	o.DataDir = dir.Path
	from, err := external.Recorded(dir.Path)
	if err != nil {
		return m, err
	}
	old := filepath.Join(dir.Path, replaced+now.UTC().Format(layout))
	switch {
	case to.IsZero() && from.IsZero():
		return m, fmt.Errorf("the objects of %s are in its own etcd already", dir.Path)
	case to.IsZero():
		m.Left = from.Prefix + " in the store of " + from.Servers[0]
		m.Sum, err = moveIn(ctx, o, from, old, now)
	case !from.IsZero():
		return m, fmt.Errorf("the objects of %s are below %s in a store that others run already: move them to the data "+
			"directory first", dir.Path, from.Prefix)
	default:
		m.Left = filepath.Join(old, "etcd")
		m.Sum, err = moveOut(ctx, o, to, old)
	}
	return m, err
}

// moveOut copies the etcd of a data directory to a store that others run.
func moveOut(ctx context.Context, o Options, to external.Options, old string) (external.Sum, error) {
	found, err := etcd.Check(o.etcd())
	if err == nil && !found.Exists {
		err = fmt.Errorf("%s holds no objects", o.etcd())
	}
	if err != nil {
		return external.Sum{}, err
	}
	sum, err := fill(ctx, o.etcd(), o.DataDir, to)
	if err != nil {
		return sum, err
	}
	if err := useStore(o.DataDir, to); err != nil {
		return sum, err
	}
	return sum, setAside(o.DataDir, old)
}

// moveIn makes an etcd with the objects of a store that others run. It goes through a backup, so its revisions are
// higher than all that clients have seen.
func moveIn(
	ctx context.Context, o Options, from external.Options, old string, now time.Time,
) (sum external.Sum, err error) {
	if err := setAside(o.DataDir, old); err != nil { // of an unfinished move
		return sum, err
	}
	o.Reason = "move"
	file := Name(o.DataDir, o.Reason, now)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return sum, fmt.Errorf("move: %w", err)
	}
	if _, err := SaveRunning(ctx, o, file); err != nil {
		return sum, err
	}
	work, _, err := stage(file, o.DataDir)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if sum, err = compare(ctx, filepath.Join(work, "etcd"), from); err != nil {
		return sum, err
	}
	if err := os.Rename(filepath.Join(work, "etcd"), o.etcd()); err != nil {
		return sum, fmt.Errorf("move: %w", err)
	}
	if err := durable.Sync(o.DataDir); err != nil {
		return sum, err
	}
	return sum, useStore(o.DataDir, external.Options{})
}

// compare proves that an etcd in a directory has the content of a store.
func compare(ctx context.Context, home string, from external.Options) (sum external.Sum, err error) {
	s, err := etcd.Start(ctx, etcd.Options{Dir: home})
	if err != nil {
		return sum, err
	}
	defer s.Stop()
	store, err := open(ctx, from)
	if err != nil {
		return sum, err
	}
	defer store.Stop()
	want, err := store.Keys().Sum(ctx)
	if err != nil {
		return sum, err
	}
	client := s.Client()
	defer client.Close()
	if sum, err = keysOf(client).Sum(ctx); err == nil && sum != want {
		err = fmt.Errorf("the store has %d keys, of which %d were copied: does another program write to it?", want.Keys,
			sum.Keys)
	}
	return sum, err
}

// block is the size of reads; a block of zeros becomes a hole in the copy.
const block = 64 << 10

// copyTree copies regular files and directories, without sockets. The copy is temporary and therefore not synced.
func copyTree(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	in, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer out.Close()
	return fs.WalkDir(in.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case e.IsDir():
			return out.Mkdir(path, 0o700)
		case !e.Type().IsRegular():
			return nil
		}
		return copyFile(in, out, path)
	})
}

// copyFile copies a file with holes for zeros, because most of etcd's preallocated space contains zeros.
func copyFile(from, to *os.Root, path string) (err error) {
	in, err := from.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := to.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var size int64
	buffer, zeros := make([]byte, block), make([]byte, block)
	for {
		n, err := io.ReadFull(in, buffer)
		if string(buffer[:n]) != string(zeros[:n]) {
			if _, err := out.WriteAt(buffer[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return out.Truncate(size)
}
