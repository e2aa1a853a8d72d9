package app

import (
	"context"
	"log/slog"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/identity"
)

// Invited returns the name of the node that a configuration invites, if it is an
// invitation.
func Invited(config *rest.Config) (node string, ok bool) { return identity.Invited(config) }

// Join returns the way to the API server, and what keeps it open until its
// context ends, by the identity that an invitation leads to, which lasts below
// the agent's root directory.
func Join(ctx context.Context, invitation *rest.Config, root string, log *slog.Logger) (*rest.Config, func(context.Context), error) {
	i, err := identity.Join(ctx, invitation, root, log)
	if err != nil {
		return nil, nil, err
	}
	return i.Config, i.Keep, nil
}
