package app

import (
	"context"
	"testing"
	"testing/synctest"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/volume"
)

// TestHomes: who calls a driver for which volumes, as its CSIDriver says.
func TestHomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		client := fake.NewClientset()
		for name, value := range map[string]string{
			"local": volume.ControllersOnNodes, "lent": volume.Delegation([]string{"two"}), "plain": "",
		} {
			d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{
				Name: name, Annotations: map[string]string{volume.AnnControllers: value},
			}}
			if _, err := client.StorageV1().CSIDrivers().Create(ctx, d, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		changed := make(chan string, 1)
		all, err := readCSIDrivers(ctx, client, func(name string) {
			select {
			case changed <- name:
			default:
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		type answer struct {
			Home
			calls bool
		}
		everything, shared := answer{Home{}, true}, answer{Home{Shared: true}, true}
		for driver, want := range map[string]map[string]answer{
			"local": {
				"one": {Home{Scope: volume.Scope{Node: "one", Rest: true}}, true},
				"two": {Home{Scope: volume.Scope{Node: "two"}}, true}, "three": {Home{Scope: volume.Scope{Node: "three"}}, true},
			},
			"lent":    {"one": shared, "two": shared, "three": {Home{Shared: true}, false}},
			"plain":   {"one": everything, "two": {Home{Shared: true}, false}},
			"unknown": {"one": everything, "two": {Home{Shared: true}, false}},
		} {
			for node, want := range want {
				homes := all.ofHost(node)
				if node == "one" {
					homes = all.ofControlPlane(volume.Scope{Node: node, Rest: true}, true)
				}
				if home, calls := homes(driver); (answer{home, calls}) != want {
					t.Errorf("%s on %s: %+v %v, want %+v", driver, node, home, calls, want)
				}
			}
		}
		becomesDelegated(t, client, all, changed)
	})
}

// becomesDelegated has a driver delegated to a node, which the node learns.
func becomesDelegated(t *testing.T, client kubernetes.Interface, all csiDrivers, changed chan string) {
	synctest.Wait()
	for len(changed) > 0 {
		<-changed
	}
	d, _ := all.cache.Get("plain")
	d = d.DeepCopy()
	d.Annotations[volume.AnnControllers] = volume.Delegation([]string{"two"})
	if _, err := client.StorageV1().CSIDrivers().Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := <-changed; got != "plain" {
		t.Errorf("%s has changed", got)
	}
	if _, calls := all.ofHost("two")("plain"); !calls {
		t.Error("a driver is not called by the node that it was delegated to")
	}
}
