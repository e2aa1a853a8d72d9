package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	decide "volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/process/identity"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/pki"
)

const (
	// pkiName is the directory of the keys in a data directory.
	pkiName = "pki"
	// joiningName is the directory of keys fetched with an invitation, until they are in their place.
	joiningName = "joining"
)

// join makes this host a control plane of the objects of another one with the invitation in o.Join, unless it has done
// so before, and returns the name of this host's node. It may be ended at any moment and repeated.
func (o Options) join(ctx context.Context, step func(what string)) (node string, err error) {
	if o.Join == "" {
		return o.Node, nil
	}
	// No other process may create keys in the directory until these have arrived.
	dir, err := datadir.Open(o.DataDir)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	facts, config, err := o.joiningFacts(dir)
	if err != nil {
		return "", err
	}
	fetch, err := facts.Fetch()
	if err != nil {
		return "", err
	}
	j := &joining{
		config: config, authority: facts.Authority, dir: dir.Path, store: o.Store, encryption: o.EncryptionConfig, log: o.Log,
	}
	if facts.Gone {
		return o.Node, j.clean(ctx)
	}
	if !fetch {
		return facts.Name, j.clean(ctx)
	}
	step("joining the control plane at " + config.Host)
	return facts.Name, j.run(ctx)
}

// joiningFacts reads the invitation and inspects the data directory. The configuration is nil if the invitation is
// gone.
func (o Options) joiningFacts(dir *datadir.Dir) (f decide.Joining, config *rest.Config, err error) {
	f = decide.Joining{File: o.Join, Node: o.Node, DataDir: dir.Path, Used: dir.Used(), Store: !o.Store.IsZero()}
	config, err = readInvitation(o.Join)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Gone = true
	case err != nil:
		return f, nil, fmt.Errorf("--join: %w", err)
	default:
		f.Name, f.Kind, f.Invited = identity.Invited(config)
		if f.Authority, err = pki.HashOf(config.CAData); err != nil {
			return f, nil, fmt.Errorf("--join: %s: %w", o.Join, err)
		}
	}
	if f.Own, err = pki.HashIn(filepath.Join(dir.Path, pkiName)); err != nil {
		return f, nil, err
	}
	own := filepath.Join(dir.Path, "etcd")
	if _, err := os.Lstat(own); err == nil {
		f.Etcd = own
	}
	return f, config, nil
}

// readInvitation returns the way to the control plane that has written an invitation. Of the file only the address, the
// authority and the token count, so that it cannot weaken how the server is verified.
func readInvitation(file string) (*rest.Config, error) {
	read, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(read.Host, "https://") || len(read.CAData) == 0 || read.Insecure {
		return nil, fmt.Errorf("%s does not say by which certificate authority the server is verified: use the file as "+
			"'volplane invite --control-plane NAME' has printed it", file)
	}
	return &rest.Config{
		Host: read.Host, BearerToken: read.BearerToken, TLSClientConfig: rest.TLSClientConfig{CAData: read.CAData},
	}, nil
}

// joining is a host that becomes a control plane.
type joining struct {
	config *rest.Config
	// authority is the hash of the inviting authority.
	authority string
	// dir is the data directory.
	dir string
	// store and encryption are those of the options.
	store      external.Options
	encryption string
	log        *slog.Logger
	keys       decide.Keys
}

func (j *joining) run(ctx context.Context) error {
	for _, step := range j.steps() {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// steps returns the steps, in order. After any of them the next start begins again with the first one.
func (j *joining) steps() []func(context.Context) error {
	return []func(context.Context) error{j.fetch, j.write, j.record, j.place, j.clean}
}

// fetched returns the directory of the keys until it is in its place.
func (j *joining) fetched() string { return filepath.Join(j.dir, joiningName, pkiName) }

// fetch gets the keys, and checks that they are usable.
func (j *joining) fetch(ctx context.Context) (err error) {
	wanted := decide.Wanted{From: j.config.Host, Prefix: j.store.Prefix, ConfigFile: j.encryption}
	if j.encryption != "" {
		if wanted.Config, err = apiserver.HashOfConfig(j.encryption); err != nil {
			return err
		}
	}
	j.keys, err = identity.Keys(ctx, j.config, filepath.Join(j.dir, joiningName), j.log)
	if err != nil {
		return err
	}
	return j.keys.Check(wanted)
}

// write writes the keys to a directory of their own.
func (j *joining) write(context.Context) error {
	// An earlier attempt may have left incomplete files.
	if err := os.RemoveAll(j.fetched()); err != nil {
		return fmt.Errorf("remove what an earlier attempt has left: %w", err)
	}
	if err := apiserver.WriteKeys(j.fetched(), j.keys, j.authority); err != nil {
		return fmt.Errorf("keys of the control plane at %s: %w", j.config.Host, err)
	}
	return durable.Sync(filepath.Dir(j.fetched()))
}

// record records where the objects are, before the keys are in their place: with keys but without the record, the next
// start could mistake an empty prefix of another store for a new one.
func (j *joining) record(context.Context) error {
	if err := datadir.Admit(j.dir, j.keys.Epoch); err != nil {
		return fmt.Errorf("record the admission of this host as a control plane: %w", err)
	}
	return external.Record(j.dir, j.store)
}

// place puts the keys in their place.
func (j *joining) place(context.Context) error {
	if err := os.Rename(j.fetched(), filepath.Join(j.dir, pkiName)); err != nil {
		return fmt.Errorf("put the keys in their place: %w", err)
	}
	return durable.Sync(j.dir)
}

// clean removes what only an interrupted attempt needs.
func (j *joining) clean(context.Context) error {
	if err := os.RemoveAll(filepath.Join(j.dir, joiningName)); err != nil {
		return fmt.Errorf("remove what joining has left: %w", err)
	}
	return nil
}
