package health

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// pod returns a Pod on node n1 that uses claims.
func pod(name string, phase corev1.PodPhase, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	p.Spec.NodeName, p.Status.Phase = "n1", phase
	for _, c := range claims {
		v := corev1.Volume{Name: c}
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return p
}

func node(ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

// TestNodeFails: claims of the driver whose Pods are on a node get one event when the node has not been ready for five
// minutes, one when it is ready again, and one when it is deleted. Claims of other drivers and of finished Pods get
// none.
func TestNodeFails(t *testing.T) { synctest.Test(t, testNodeFails) }

func testNodeFails(t *testing.T) {
	api := kubetest.NewAPI(t, claim(t, "claim"), pv(t, "pv"), claim(t, "claim2"), pv(t, "pv2 foreign"),
		node(corev1.ConditionTrue),
		pod("p", corev1.PodRunning, "claim", "claim2", "missing"), pod("q", corev1.PodPending, "claim"),
		pod("done", corev1.PodSucceeded, "claim"))
	drivers := csi.NewSet()
	drivers.Put(csitest.InMemory(t, driverConfig()).Dial())
	life := api.Begin(func(env controller.Env) *controller.Controller { return NewWatcher(env, drivers, time.Now) })
	defer life.Kill()
	look := func(want time.Duration, told ...string) {
		t.Helper()
		synctest.Wait()
		r, err := life.Reconcile(t.Context(), kubetest.KeyOf("node/n1"))
		if err != nil || r.After != want {
			t.Errorf("it is reconciled again after %s, want %s: %v", r.After, want, err)
		}
		api.ExpectEvents(told...)
		api.Forget()
	}
	look(0)
	api.Put(node(corev1.ConditionUnknown))
	look(5 * time.Minute)
	<-time.After(time.Minute)
	api.Put(node(corev1.ConditionFalse))
	look(4 * time.Minute)
	<-time.After(4 * time.Minute)
	const failed = "Warning ns/claim NodeFailed: Pods: [ p q ] consuming PVC: claim in namespace: ns " +
		"are now on a failed node: n1 (node n1)"
	look(0, failed)
	<-time.After(10 * time.Minute)
	look(0)
	api.Put(node(corev1.ConditionTrue))
	look(0, "Normal ns/claim NodeRecovered: Node: n1 recovered")
	look(0)
	api.Put(node(corev1.ConditionUnknown))
	look(5 * time.Minute)
	api.Drop(node(corev1.ConditionUnknown))
	look(0, failed)
	api.Put(node(corev1.ConditionTrue))
	look(0)
}

// TestOptions: the pause between cycles, the time limit of a call, and how many volumes are queried at the same time.
func TestOptions(t *testing.T) { synctest.Test(t, testOptions) }

func testOptions(t *testing.T) {
	config := driverConfig()
	config.Controller.ListVolumeHealth = false
	d := csitest.InMemory(t, config)
	asked := make(chan struct{}, 4)
	d.OnCall("ControllerGetVolumeHealth", func(_ int, req any) csitest.Action {
		asked <- struct{}{}
		if req.(*csipb.ControllerGetVolumeHealthRequest).GetVolumeId() == "h" {
			return csitest.Action{Hang: true}
		}
		return csitest.Action{Err: status.Error(codes.NotFound, "no such volume")}
	})
	api := kubetest.NewAPI(t, claim(t, "claim"), pv(t, "pv"), claim(t, "claim2"), pv(t, "pv2"))
	drivers := csi.NewSet()
	drivers.Put(d.Dial())
	o := Options{Every: 3 * time.Second, Timeout: 2 * time.Second, Volumes: 2}
	life := api.Begin(func(env controller.Env) *controller.Controller { return New(env, drivers, o) })
	defer life.Kill()
	begin := time.Now()
	done := make(chan controller.Result, 1)
	go func() {
		r, err := life.Reconcile(t.Context(), kubetest.KeyOf("driver/"+driverName))
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	synctest.Wait()
	if len(asked) != 2 {
		t.Errorf("%d volumes are queried at the same time", len(asked))
	}
	if r := <-done; r.After != o.Every || time.Since(begin) != o.Timeout {
		t.Errorf("it ends after %s, and comes again after %s", time.Since(begin), r.After)
	}
}

// TestDriverWithoutHealth: the log warns about a driver that cannot report health if the user has enabled it.
func TestDriverWithoutHealth(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		config := driverConfig()
		config.Controller.ListVolumeHealth, config.Controller.GetVolumeHealth = false, false
		drivers, log := csi.NewSet(), &strings.Builder{}
		drivers.Put(csitest.Start(t, config).Dial())
		life := kubetest.NewAPI(t, claim(t, "claim"), pv(t, "pv")).Begin(func(env controller.Env) *controller.Controller {
			env.Log = slog.New(slog.NewTextHandler(log, nil))
			return New(env, drivers, Options{Wanted: wanted})
		})
		if r, err := life.Reconcile(t.Context(), kubetest.KeyOf("driver/"+driverName)); err != nil || r.After != 0 {
			t.Errorf("it comes again after %s: %v", r.After, err)
		}
		life.Kill()
		said := strings.Contains(log.String(), "driver cannot report the health of its volumes") &&
			strings.Contains(log.String(), "driver="+driverName)
		if said != wanted {
			t.Errorf("wanted %t, the log says %q", wanted, log)
		}
	}
}
