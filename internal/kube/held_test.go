package kube

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestHoldBesideTheServer: a process with the API server in it asks until a restore is accepted, and then not again.
func TestHoldBesideTheServer(t *testing.T) {
	client := clientset.New(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.NamespaceSystem, Name: volume.ConfigRestored},
	})
	held := CheckHeldBeside(client)
	for range 2 {
		if err := held(t.Context()); !errors.Is(err, ErrHeld) {
			t.Fatalf("after a restore: %v", err)
		}
	}
	err := client.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(t.Context(), volume.ConfigRestored,
		metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client.ClearActions()
	for range 3 {
		if err := held(t.Context()); err != nil {
			t.Fatalf("after it was accepted: %v", err)
		}
	}
	if asked := len(client.Actions()); asked != 1 {
		t.Errorf("the API was asked %d times, want 1", asked)
	}
}
