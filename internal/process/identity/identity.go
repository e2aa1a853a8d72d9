package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/queue"
)

var (
	// ErrExpired says that the certificate has expired, because the node was off for too long.
	ErrExpired = errors.New("the certificate of this node has expired")
	errNone    = errors.New("no invitation")
)

// Identity is the identity of a node, which is stored in a file.
type Identity struct {
	// Node is the node's name.
	Node string
	// Config is the client configuration for the API server. It names the file, so clients follow each renewal.
	Config *rest.Config

	file file
	// servers are nil if the invitation is of a version that knew one control plane only.
	servers       *servers
	obtained, end time.Time
	ask           asker
	log           *slog.Logger
}

// Invited returns the name in an invitation, and its kind.
func Invited(config *rest.Config) (name string, kind decide.Kind, ok bool) {
	t, ok := decide.ParseToken(config.BearerToken)
	return t.Node, t.Kind, ok
}

// Join returns the identity for an invitation: the one that is stored below root, or a new one. It
// retries until the server answers or ctx ends. It may be repeated.
func Join(ctx context.Context, config *rest.Config, root string, log *slog.Logger) (*Identity, error) {
	all := serversBelow(root)
	all.moved = func(before, now string) {
		log.Warn("another control plane answers than before", "before", before, "now", now)
	}
	config = rest.CopyConfig(config)
	if !all.use(config) {
		all = nil
	}
	ask, err := newAsker(config, decide.PathCertificate)
	if err != nil {
		return nil, err
	}
	i, err := join(ctx, config, root, ask, log)
	if err != nil {
		return nil, err
	}
	i.servers = all
	i.ask, err = newAsker(i.Config, decide.PathCertificate)
	return i, err
}

func join(ctx context.Context, config *rest.Config, root string, ask asker, log *slog.Logger) (*Identity, error) {
	t, ok := decide.ParseToken(config.BearerToken)
	if !ok || t.Kind != decide.KindNode {
		return nil, errNone
	}
	i := &Identity{Node: t.Node, file: fileOf(filepath.Join(root, "identity"), t.ID), log: log}
	key, cert, obtained, err := i.file.begin()
	if err != nil {
		return nil, fmt.Errorf("identity of node %s: %w", i.Node, err)
	}
	if cert == nil {
		var text []byte
		err := retry(ctx, log.With("node", i.Node), func() error {
			cert, text, err = certify(ctx, ask, i.Node, key)
			return err
		})
		if err != nil && !errors.Is(err, ErrRefused) {
			return nil, fmt.Errorf("join as node %s: %w", i.Node, err)
		}
		if err != nil {
			return nil, fmt.Errorf("join as node %s: %w: the invitation has expired, was used by another host or was taken "+
				"back: get a new one with 'volplane invite %s'", i.Node, err, i.Node)
		}
		if err := i.file.write(key, text); err != nil {
			return nil, err
		}
		obtained = time.Now()
	}
	if time.Now().After(cert.NotAfter) {
		return nil, fmt.Errorf("%w on %s: get a new invitation with 'volplane invite %s'", ErrExpired,
			cert.NotAfter.Format(time.DateTime), i.Node)
	}
	if err := i.file.removeOthers(); err != nil {
		return nil, fmt.Errorf("remove earlier identities: %w", err)
	}
	i.obtained, i.end = obtained, cert.NotAfter
	i.Config = rest.AnonymousClientConfig(config)
	i.Config.WrapTransport = config.WrapTransport
	i.Config.CertFile, i.Config.KeyFile = i.file.path, i.file.path
	return i, nil
}

// retry repeats an operation that fails because the server cannot be reached, or cannot answer, until ctx ends.
func retry(ctx context.Context, log *slog.Logger, do func() error) error {
	const shortest, longest = time.Second, 30 * time.Second
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := do()
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		log.Warn("this host has not joined yet, and goes on trying", "cause", err)
		if !lifecycle.Sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// Keep renews the certificate, and maintains the addresses of control planes, until ctx ends.
func (i *Identity) Keep(ctx context.Context) {
	if i.servers == nil {
		i.keep(ctx)
		return
	}
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { i.keep(ctx) })
	if err := i.servers.follow(ctx, i.Config, i.log); err != nil {
		i.log.Error("other control planes will not be found", "node", i.Node, "err", err)
	}
}

func (i *Identity) keep(ctx context.Context) {
	pause, failed := time.Duration(0), 0
	for {
		wait, due := decide.Renew(i.obtained, i.end, time.Now())
		if !lifecycle.Sleep(ctx, max(wait, pause)) {
			return
		}
		if !due {
			continue
		}
		if err := i.renew(ctx); err != nil {
			failed++
			i.log.Warn("the certificate of this node is not renewed, which is tried again", "node", i.Node, "expires",
				i.end.Format(time.DateTime), "cause", err)
		} else {
			failed = 0
			i.log.Info("the certificate of this node is renewed", "node", i.Node, "expires", i.end.Format(time.DateTime))
		}
		// There is a pause after a success, too: with a wrong clock each certificate seems to be due.
		pause = queue.Backoff{Min: time.Minute, Max: decide.RenewalPause}.Pause(failed)
	}
}

// renew obtains a certificate for a new key with the present one.
func (i *Identity) renew(ctx context.Context) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	cert, text, err := certify(ctx, i.ask, i.Node, key)
	if err != nil {
		return err
	}
	if err := i.file.write(key, text); err != nil {
		return err
	}
	i.obtained, i.end = time.Now(), cert.NotAfter
	return nil
}
