package up

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/backup"
)

// Backups configure the automatic backups.
type Backups struct {
	// Every is the interval of the backups; 0 disables them.
	Every time.Duration
	// Keep is the number of backups that are kept.
	Keep int
}

// daily is the reason of an automatic backup.
const daily = "daily"

// backUp makes backups until ctx ends.
func (o Options) backUp(ctx context.Context) error {
	if o.Backups.Every > 0 {
		backup.Keep(ctx, backup.Options{DataDir: o.DataDir, Version: o.Version, Reason: daily}, o.Backups.Every,
			o.Backups.Keep, o.Log)
	}
	<-ctx.Done()
	return nil
}

// Accept allows a restored control plane to unmount, detach and delete again. The
// control plane with the data directory must be running. Accept may be repeated.
func Accept(ctx context.Context, dataDir string) error {
	_, client, err := administrator(dataDir)
	if err != nil {
		return err
	}
	err = client.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(ctx, volume.ConfigRestored, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%w; the control plane must be running: start it with volplane up", err)
	}
	return nil
}
