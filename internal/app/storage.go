package app

import (
	"context"
	"fmt"

	"volplane.dev/volplane/internal/door/storageprovider"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

// StoragePart returns systemd's storage provider as a part of another program, which it never ends; none if the options
// name no socket and systemd hands over none. Calls wait at the socket as soon as the function returns.
func StoragePart(ctx context.Context, o program.StorageOptions) ([]parts.Part, error) {
	l, err := storageprovider.Listen(ctx, o.Socket)
	if err != nil {
		return nil, fmt.Errorf("storage provider: %w", err)
	}
	if l == nil {
		return nil, nil
	}
	if o.Why == nil {
		if o.Why, err = explained(o.Config); err != nil {
			return nil, err
		}
	}
	d, err := storageprovider.New(o)
	if err != nil {
		return nil, err
	}
	return doorPart("storage provider", o.Log, func(ctx context.Context) error { return d.Run(ctx, l) }), nil
}

// StorageProvider serves systemd's storage volumes until ctx ends.
func StorageProvider(ctx context.Context, o program.StorageOptions) error {
	l, err := storageprovider.Listen(ctx, o.Socket)
	if err != nil {
		return fmt.Errorf("storage provider: %w", err)
	}
	d, err := storageprovider.New(o)
	if err != nil {
		return err
	}
	return parts.UnlessEnded(ctx, d.Run(ctx, l))
}
