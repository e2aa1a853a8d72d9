package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

const (
	// objects begins the keys of objects in an etcd of a control plane's own, and in all snapshots.
	objects = "/registry"
	// answerLimit is how long a command waits for a store that others run.
	answerLimit = 10 * time.Second
)

// open connects to a store that others run.
func open(ctx context.Context, at external.Options) (*external.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return external.Open(ctx, at, func(string) {}, nil)
}

// authority returns the authority's certificate in a data directory, with which a store recognizes the owner of its
// keys.
func authority(dataDir string) ([]byte, error) {
	ca, err := os.ReadFile(filepath.Join(dataDir, "pki", "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority: %w", err)
	}
	return ca, nil
}

// saveExternal saves the objects in a store that others run, as of one revision. It copies them to a temporary etcd,
// whose snapshot is like that of any other control plane: other keys of the store are never read.
func saveExternal(ctx context.Context, o Options, at external.Options, file string) (m Manifest, err error) {
	work, err := os.MkdirTemp(o.DataDir, draft)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	home := filepath.Join(work, "etcd")
	s, err := etcd.Start(ctx, etcd.Options{Dir: home, NoSync: true, Quota: maxSnapshot})
	if err != nil {
		return m, err
	}
	defer s.Stop()
	ca, err := authority(o.DataDir)
	if err != nil {
		return m, err
	}
	from, err := open(ctx, at)
	if err != nil {
		return m, err
	}
	defer from.Stop()
	if err := from.Recognize(ctx, ca); err != nil {
		return m, err
	}
	client := s.Client()
	defer client.Close()
	if _, err := from.Keys().Copy(ctx, keysOf(client)); err != nil {
		return m, err
	}
	return save(ctx, o, home, file)
}

// keysOf returns those of an etcd of a control plane's own.
func keysOf(c *clientv3.Client) external.Keys { return external.Keys{Client: c, Prefix: objects} }

// fill copies the objects of the etcd in a directory to a prefix of a store that others run; see external.Fill.
func fill(ctx context.Context, home, pki string, to external.Options) (sum external.Sum, err error) {
	ca, err := authority(pki)
	if err != nil {
		return sum, err
	}
	target, err := open(ctx, to)
	if err != nil {
		return sum, err
	}
	defer target.Stop()
	s, err := etcd.Start(ctx, etcd.Options{Dir: home})
	if err != nil {
		return sum, err
	}
	defer s.Stop()
	client := s.Client()
	defer client.Close()
	return target.Fill(ctx, keysOf(client), ca)
}

// useStore records that the objects of a data directory are in a store that others run, zero for its own etcd. The
// recorded position belongs to the former store and is meaningless now. If the host was given up as a control plane, it
// is admitted again: there may be no other one any more.
func useStore(dir string, at external.Options) error {
	if err := datadir.Admit(dir, identity.Epoch(0).Next(time.Now())); err != nil {
		return err
	}
	if err := external.Record(dir, at); err != nil {
		return err
	}
	return durable.Remove(filepath.Join(dir, datadir.Record))
}

// setAside moves the etcd of a data directory, if there is one, to another directory.
func setAside(dir, old string) error {
	if _, err := os.Lstat(filepath.Join(dir, "etcd")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(old, 0o700); err != nil {
		return fmt.Errorf("put the former etcd aside: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, "etcd"), filepath.Join(old, "etcd")); err != nil {
		return fmt.Errorf("put the former etcd aside: %w", err)
	}
	return durable.Sync(dir)
}

// Describe says where the objects of a data directory are, and how that store is.
func Describe(ctx context.Context, dataDir string) (external.Description, error) {
	at, err := external.Recorded(dataDir)
	if err != nil {
		return external.Description{}, err
	}
	if at.IsZero() {
		home := Options{DataDir: dataDir}.etcd()
		d := external.Description{Store: "the etcd in " + home}
		if info, err := os.Stat(etcd.Database(home)); err == nil {
			d.Size = info.Size()
		}
		return d, nil
	}
	s, err := open(ctx, at)
	if err != nil {
		return external.Description{}, err
	}
	defer s.Stop()
	return s.Describe(ctx), nil
}
