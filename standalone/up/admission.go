package up

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/datadir"

	decide "volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/process/identity"
)

// admit refuses a host whose control plane was given up, unless it is invited again.
func (o Options) admit(ctx context.Context, server *apiserver.Server) error {
	// Without other control planes over its store none can have given this one up.
	epoch, err := decide.Epoch(math.MaxInt64), error(nil)
	if server.Shared() {
		epoch, err = datadir.Admitted(o.DataDir)
	}
	if err != nil {
		return fmt.Errorf("admission of this host as a control plane: %w", err)
	}
	err = server.Members().Admit(ctx, o.Node, epoch)
	if !errors.Is(err, membership.ErrGivenUp) || o.Join == "" {
		return err
	}
	config, failed := readInvitation(o.Join)
	if failed == nil {
		failed = o.admitAgain(ctx, server, config)
	}
	if failed != nil {
		return fmt.Errorf("%w; %s does not bring it back: %w", err, o.Join, failed)
	}
	return nil
}

// admitAgain uses an invitation of a control plane for the API server of this process, which has the objects of the
// others.
func (o Options) admitAgain(ctx context.Context, server *apiserver.Server, config *rest.Config) error {
	config.Host = "https://" + server.Addr()
	dir := filepath.Join(o.DataDir, joiningName)
	k, err := identity.Keys(ctx, config, dir, o.Log)
	if err != nil {
		return err
	}
	if err := server.Members().Admit(ctx, o.Node, k.Epoch); err != nil {
		return err
	}
	if err := datadir.Admit(o.DataDir, k.Epoch); err != nil {
		return fmt.Errorf("record the admission of this host as a control plane: %w", err)
	}
	o.Log.Warn("this control plane was given up, and is admitted again", "node", o.Node)
	return os.RemoveAll(dir)
}
