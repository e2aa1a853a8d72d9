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

// Backups says which backups are made by themselves.
type Backups struct {
	// Every is the pause between two; 0 makes none.
	Every time.Duration
	// Keep is how many of them are kept.
	Keep int
}

// daily is the reason of a backup that is made by itself.
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

// Accept says that what a restored API does not know of may be taken away. The
// control plane over the data directory must be running. It may be repeated.
func Accept(ctx context.Context, dataDir string) error {
	_, client, err := administrator(dataDir)
	if err != nil {
		return err
	}
	err = client.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(ctx, volume.ConfigRestored, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%w; the control plane has to run for that: start it with volplane up", err)
	}
	return nil
}
