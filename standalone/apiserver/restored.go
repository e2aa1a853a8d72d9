package apiserver

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/backup"
)

// markRestored records in the API that it was restored from a backup, or that its store was
// replaced by an older one, before other requests are served. Nodes and controllers check
// this record before they unmount, detach or delete.
func (s *Server) markRestored(ctx context.Context, client kubernetes.Interface) error {
	r, pending, err := backup.Pending(s.dir.Path)
	if err != nil || !pending {
		return err
	}
	said := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.NamespaceSystem, Name: volume.ConfigRestored},
		Data: map[string]string{
			volume.RestoredMade: r.Made.Format(time.RFC3339), "file": filepath.Base(r.From), "version": r.Version,
		},
	}
	if at := r.Recorded.At; !at.IsZero() {
		said.Data[volume.RestoredLacks] = at.Format(time.RFC3339)
	}
	if err := ensureNamespace(ctx, client, volume.NamespaceSystem); err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(said.Namespace)
	_, err = maps.Create(ctx, said, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The object is from an earlier restore or part of the backup.
		_, err = maps.Update(ctx, said, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("record that the API was restored: %w", err)
	}
	return backup.Settle(s.dir.Path)
}

// ensureNamespace creates a namespace that the server itself creates a moment later.
func ensureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	return nil
}
