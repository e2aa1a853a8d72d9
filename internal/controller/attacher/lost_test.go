package attacher

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestLost: an attachment that disappeared without a detach is kept as one that is being deleted, with our finalizer,
// even if a user had removed it.
func TestLost(t *testing.T) {
	var l lost
	if _, ok := l.get("va"); ok {
		t.Error("nothing is lost, and it is found")
	}
	begun := time.Now()
	l.put(va(t, "recorded attached"))
	l.put(va(t, "another"))
	got, ok := l.get("va")
	if !ok || got.DeletionTimestamp.Time.Before(begun) || got.DeletionTimestamp.After(time.Now()) {
		t.Fatalf("lost is %v", got)
	}
	got.DeletionTimestamp = va(t, "going").DeletionTimestamp
	if diff := cmp.Diff(va(t, "recorded attached going"), got); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if got, _ := l.get("va-2"); !slices.Equal(got.Finalizers, []string{foreign, "external-attacher/e-example"}) {
		t.Errorf("lost with %v", got.Finalizers)
	}
}

// TestLostOf: a lost attachment is found by its driver and its volume until it is detached.
func TestLostOf(t *testing.T) {
	var l lost
	is := func(want map[string][]string) {
		t.Helper()
		got := map[string][]string{}
		for _, name := range []string{driverName, "e.example", "none.example"} {
			for _, a := range l.list(name) {
				got[name] = append(got[name], a.Name)
			}
		}
		for _, name := range []string{"pv", "pv-2", "pv-3"} {
			if l.of(name) {
				got["volumes"] = append(got["volumes"], name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lost (-want +got):\n%s", diff)
		}
	}
	is(map[string][]string{})
	l.put(va(t, "recorded attached"))
	l.put(va(t, "another"))
	is(map[string][]string{driverName: {"va"}, "e.example": {"va-2"}, "volumes": {"pv", "pv-2"}})
	for _, want := range []string{"pv", ""} {
		if volume := l.remove(va(t, "recorded attached")); volume != want {
			t.Errorf("the volume of the lost attachment is %q, want %q", volume, want)
		}
		is(map[string][]string{"e.example": {"va-2"}, "volumes": {"pv-2"}})
	}
}

// TestLostAndMadeAgain: when an attachment of the same name was created again and is detached, the lost one counts as
// detached as well, and the new one may be released.
func TestLostAndMadeAgain(t *testing.T) {
	var l lost
	l.put(va(t, "recorded"))
	if volume := l.remove(va(t, "recorded going uid=new")); volume != "" ||
		l.of("pv") {
		t.Errorf("the new attachment is %q's lost one", volume)
	}
}

// TestLostOn: lost attachments are found by their node, because changes of the node decide when they are detached.
func TestLostOn(t *testing.T) {
	var l lost
	l.put(va(t, "recorded"))
	if got := l.on("n1"); len(got) != 1 || len(l.on("n2")) > 0 {
		t.Errorf("on n1 are %v, on n2 %v", got, l.on("n2"))
	}
}

// TestLostBeforeItIsGone: an attachment that is removed by force while its volume is being deleted counts as lost
// before any reader can see that it is gone: otherwise the volume's finalizer would be removed in between, without a
// detach.
func TestLostBeforeItIsGone(t *testing.T) {
	client := kubetest.NewAPI(t, pv(t, "dying kept"), va(t, "recorded attached"))
	lost := make(chan bool, 1)
	var a *attacher
	client.Begin(func(env controller.Env) *controller.Controller {
		a = build(env, Options{Drivers: csi.NewSet()})
		// Handlers that run after the attacher's do so before any reader can see it.
		env.Caches.Attachments().BeforeDelete(func(*storagev1.VolumeAttachment) { lost <- a.lost.of("pv") })
		return a.Controller
	})
	if err := client.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "",
		"va"); err != nil {
		t.Fatal(err)
	}
	if !<-lost {
		t.Error("it is gone, and not known to be lost")
	}
	if _, err := a.reconcile(t.Context(), controller.Key{Kind: kindVolume, Name: "pv"}); err != nil {
		t.Fatal(err)
	}
	kubetest.Written(t, client.Clientset)
}
