package driverhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// Identity is what a program needs to speak to the API server as a service account.
type Identity struct {
	// Host and Port are where the API server listens, and CA is the authority of its certificate, in PEM.
	Host, Port string
	CA         []byte
	// Token proves who the program is, until Expires.
	Token   string
	Expires time.Time
}

// accountPlace is where programs that know only Pods look for the files of their service account.
const accountPlace = "/var/run/secrets/kubernetes.io/serviceaccount"

// errNoTokens says what to do on a host that may not request tokens.
var errNoTokens = errors.New("this host's node agent may ask for tokens of Pods only: run the program on the host of " +
	"the control plane, or remove serviceAccount from its file and give it a kubeconfig, as by --env KUBECONFIG=PATH")

// accountsDir is the directory of the files of service accounts, in a directory for each program.
func accountsDir(root string) string { return filepath.Join(root, "serviceaccounts") }

func (p *process) accountDir() string { return filepath.Join(accountsDir(p.h.RootDir), p.name()) }

// identify writes the files with which the program speaks to the API server, and returns the identity. The directory
// stays the same, because a program that runs has it open.
func (p *process) identify(ctx context.Context) (Identity, error) {
	fail := func(err error) (Identity, error) {
		return Identity{}, fmt.Errorf("service account %s of %s: %w", p.ServiceAccount, p.name(), err)
	}
	if p.h.Identify == nil {
		return fail(errNoTokens)
	}
	ns, name, _ := strings.Cut(p.ServiceAccount, "/")
	id, err := p.h.Identify(ctx, ns, name)
	if err != nil {
		return fail(err)
	}
	if err := linkAccounts(p.h.accountPlace); err != nil {
		return fail(err)
	}
	dir := p.accountDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	for file, data := range map[string][]byte{"ca.crt": id.CA, "namespace": []byte(ns), "token": []byte(id.Token)} {
		if err := durable.WriteFile(filepath.Join(dir, file), data); err != nil {
			return fail(err)
		}
	}
	return id, nil
}

// linkAccounts creates a link at the path where programs look, which leads each process to the directory that it
// was given. A process without one finds nothing there, as if the link did not exist.
func linkAccounts(place string) error {
	target := fmt.Sprintf("/proc/thread-self/fd/%d", supervise.HandedFD)
	if err := os.MkdirAll(filepath.Dir(place), 0o750); err != nil {
		return err
	}
	if err := os.Symlink(target, place); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if there, err := os.Readlink(place); err != nil || there != target {
		return fmt.Errorf("%s already exists, as in a Pod of Kubernetes, and is used by other programs: run the driver on "+
			"a host without it, or remove serviceAccount from its file", place)
	}
	return nil
}

// keepIdentity rewrites the files before the token expires, until the returned function is called.
func (p *process) keepIdentity(ctx context.Context, id Identity) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for ctx.Err() == nil {
			if !lifecycle.Sleep(ctx, renewal(time.Until(id.Expires))) {
				return
			}
			p.repeat(ctx, p.fail, func(ctx context.Context) error {
				next, err := p.identify(ctx)
				if err == nil {
					id = next
				}
				return err
			})
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

// renewal returns after which time a token that is valid for so long is renewed: early enough to try again for a while.
func renewal(valid time.Duration) time.Duration {
	const least = time.Second
	return max(valid*4/5, least)
}

// forgetAccounts removes the files of accounts that no file of a driver names any more.
func (h *Host) forgetAccounts(wanted []driverfile.Driver, broken map[string]error) {
	if _, unread := broken[string(h.Files)]; unread {
		return
	}
	entries, err := os.ReadDir(accountsDir(h.RootDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Log.Warn("the files of service accounts cannot be listed", "err", err)
	}
	kept := driverfile.Programs(wanted, broken, func(p driverfile.Process) bool { return p.ServiceAccount != "" })
	for _, e := range entries {
		if kept[e.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(accountsDir(h.RootDir), e.Name())); err != nil {
			h.Log.Warn("the files of a service account cannot be removed", "of", e.Name(), "err", err)
		}
	}
}
