package kube

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

// ErrNotText says that a value of a Secret is not UTF-8, so that CSI cannot carry it.
var ErrNotText = errors.New("not UTF-8 text, which CSI needs")

// SecretData reads the Secret that ref names from the API server: Secrets are never cached. It
// returns nil for a nil ref. The error of a missing Secret is volume.ErrNoSecret, and apierrors.IsNotFound is true for
// it.
func SecretData(
	ctx context.Context, client kubernetes.Interface, ref *corev1.SecretReference,
) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = noSecretError{err}
	}
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		if !utf8.Valid(v) {
			return nil, fmt.Errorf("secret %s/%s: the value of key %q is %w", ref.Namespace, ref.Name, k, ErrNotText)
		}
		out[k] = string(v)
	}
	return out, nil
}

// noSecretError is the API server's error that a Secret does not exist; it is volume.ErrNoSecret.
type noSecretError struct{ error }

func (e noSecretError) Unwrap() error      { return e.error }
func (noSecretError) Is(target error) bool { return target == volume.ErrNoSecret }

// SecretDataLeft is SecretData for calls that undo something (detach, delete), which a missing
// Secret must not prevent: it returns no data then, and the error of the API server as missing.
func SecretDataLeft(
	ctx context.Context, client kubernetes.Interface, ref *corev1.SecretReference,
) (data map[string]string, missing, err error) {
	data, err = SecretData(ctx, client, ref)
	if apierrors.IsNotFound(err) {
		return nil, err, nil
	}
	return data, nil, err
}
