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
)

// ErrNotText says that a Secret has a value that CSI cannot carry.
var ErrNotText = errors.New("not UTF-8 text, which CSI needs")

// SecretData reads what a reference names, live: Secrets are never cached. No
// reference is no data.
func SecretData(
	ctx context.Context, client kubernetes.Interface, ref *corev1.SecretReference,
) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
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

// SecretDataLeft reads what a reference names for a way back, on which a Secret
// that is gone must not stop anybody: then there is no data, and missing says
// so.
func SecretDataLeft(
	ctx context.Context, client kubernetes.Interface, ref *corev1.SecretReference,
) (data map[string]string, missing, err error) {
	data, err = SecretData(ctx, client, ref)
	if apierrors.IsNotFound(err) {
		return nil, err, nil
	}
	return data, nil, err
}
