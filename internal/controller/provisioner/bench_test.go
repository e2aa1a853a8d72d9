package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const (
	gib     = 1 << 30
	foreign = "example.org/foreign"
)

// bench is a provisioner that does one step when it is told to, over an API that
// tells it nothing, so that it knows what there was at its start and what it
// has written itself. What it wants to look at is only noted.
type bench struct {
	t       *testing.T
	api     *api
	driver  *csitest.Driver
	dialed  *csi.Driver
	drivers *csi.Set
	setup   setup
	claims  *kube.Cache[*corev1.PersistentVolumeClaim]
	volumes *kube.Cache[*corev1.PersistentVolume]
	// step is Reconcile, stop ends the process as kill -9 does.
	step    func(context.Context, controller.Key) (controller.Result, error)
	closing func(context.Context) error
	stop    func()

	woken kubetest.Notes
}

// setup is what differs between benches.
type setup struct {
	config csitest.Config
	Options
	// late says that the driver has not registered, hears that the API tells of
	// changes.
	late, hears bool
}

func newBench(t *testing.T, change func(*setup), objects ...runtime.Object) *bench {
	t.Helper()
	s := setup{config: driverConfig()}
	s.Options = Options{Requests: controller.NewRequests(), Intents: oneLog()}
	if change != nil {
		change(&s)
	}
	b := &bench{t: t, setup: s, api: newAPI(t, !s.hears, objects...), driver: csitest.Start(t, s.config)}
	b.dialed = b.driver.Dial()
	b.start()
	return b
}

// start begins a process.
func (b *bench) start() {
	b.t.Helper()
	b.drivers = csi.NewSet()
	if !b.setup.late {
		b.drivers.Put(b.dialed)
	}
	b.setup.Drivers = b.drivers
	p := b.api.Begin(func(env controller.Env) *controller.Controller {
		b.claims, b.volumes = env.Caches.Claims(), env.Caches.Volumes()
		env.Client = b.api.with(env.Client)
		c := New(env, b.setup.Options)
		b.step, b.closing, c.Close = b.woken.Instead(c), c.Close, nil
		return c
	})
	p.Work()
	b.stop = p.Kill
}

// restart ends the process and begins another one.
func (b *bench) restart() {
	b.t.Helper()
	b.stop()
	b.start()
}

// wakes compares what it wants to look at since the last time.
func (b *bench) wakes(want ...string) { b.t.Helper(); b.woken.Await(b.t, want...) }

// forgetsWakes waits for what New and the start wake.
func (b *bench) forgetsWakes(until string) { b.t.Helper(); b.woken.AwaitLast(b.t, until) }

func (b *bench) reconcile(kind, name string) (time.Duration, error) {
	b.t.Helper()
	k := controller.Key{Kind: kind, Name: name}
	if kind == kindSnapshot && name != "" {
		k.Namespace = "ns"
	}
	r, err := b.step(b.t.Context(), k)
	return r.After, err
}

// works has it look at a key, which must go well and not be for later.
func (b *bench) works(kind, name string) {
	b.t.Helper()
	if after, err := b.reconcile(kind, name); err != nil || after != 0 {
		b.t.Fatalf("%s %s: after %v, %v", kind, name, after, err)
	}
}

// errs has it look at a key, which must fail with these words.
func (b *bench) errs(kind, name, words string) {
	b.t.Helper()
	if _, err := b.reconcile(kind, name); err == nil || !strings.Contains(err.Error(), words) {
		b.t.Fatalf("%s %s: %v, want %q", kind, name, err, words)
	}
}

// paused has it look at a key for which it is not time.
func (b *bench) paused(kind, name string, most time.Duration) {
	b.t.Helper()
	if after, err := b.reconcile(kind, name); err != nil || after <= 0 || after > most {
		b.t.Fatalf("%s %s: after %v, %v; want a pause of %v at most", kind, name, after, err, most)
	}
}

// called compares all calls that the driver got.
func (b *bench) called(want ...proto.Message) {
	b.t.Helper()
	b.driver.Called(want...)
}

// wrote compares all that was written.
func (b *bench) wrote(want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.api.writes(), cmpopts.EquateEmpty()); diff != "" {
		b.t.Errorf("writes (-want +got):\n%s", diff)
	}
}

// told waits until there are these events and no other ones: what kind it is, the
// reason, the object, who is next, and words of the text.
func (b *bench) told(want ...[5]string) {
	b.t.Helper()
	kubetest.Eventually(b.t, func() string {
		all, err := b.api.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		left := slices.Clone(want)
		for i := range all.Items {
			e := &all.Items[i]
			at := slices.IndexFunc(left, func(w [5]string) bool {
				return w[0] == e.Type && w[1] == e.Reason && w[2] == e.InvolvedObject.Name &&
					w[3] == e.Annotations[volume.AnnNext] && strings.Contains(e.Message, w[4])
			})
			if at < 0 {
				return fmt.Sprintf("no event %s %s %s %s %s", e.Type, e.Reason, e.InvolvedObject.Name,
					e.Annotations[volume.AnnNext], e.Message)
			}
			left = slices.Delete(left, at, at+1)
		}
		if len(left) > 0 {
			return fmt.Sprintf("events %q", left)
		}
		return ""
	})
}

func wholly() cmp.Options {
	return append(kubetest.Whole(), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "DeletionTimestamp"),
		cmpopts.IgnoreFields(corev1.ObjectReference{}, "ResourceVersion"),
		cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }))
}

// volumesAre compares all volume objects, in whatever order.
func (b *bench) volumesAre(want ...*corev1.PersistentVolume) {
	b.t.Helper()
	all, err := b.api.CoreV1().PersistentVolumes().List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	var got []*corev1.PersistentVolume
	for i := range all.Items {
		got = append(got, &all.Items[i])
	}
	byName := cmpopts.SortSlices(func(a, b *corev1.PersistentVolume) bool { return a.Name < b.Name })
	if diff := cmp.Diff(want, got, byName, wholly()); diff != "" {
		b.t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

// claimIs compares a whole claim.
func (b *bench) claimIs(want *corev1.PersistentVolumeClaim) {
	b.t.Helper()
	got, err := b.api.CoreV1().PersistentVolumeClaims(want.Namespace).Get(b.t.Context(), want.Name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, wholly()); diff != "" {
		b.t.Errorf("claim (-want +got):\n%s", diff)
	}
}

// open compares the claims whose intents are to be found by the next process.
func (b *bench) open(want ...string) {
	b.t.Helper()
	all, err := b.api.CoreV1().ConfigMaps(volume.NamespaceSystem).List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for i := range all.Items {
		for uid, text := range all.Items[i].Data {
			if in, err := provision.ParseIntent(text); err != nil || string(in.Claim.UID) != uid ||
				in.Begun.IsZero() && in.Class != "earlier" {
				b.t.Errorf("intent %s: %v, begun %v", uid, err, in.Begun)
			}
			got = append(got, uid)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Errorf("intents of %v, want %v", got, want)
	}
}

// sweeps has it do away with intents that are resolved.
func (b *bench) sweeps() { b.t.Helper(); b.works(kindLog, "") }

// fails has the driver's call fail by a code, done or not, until it is told
// otherwise; OK lets it go well.
func (b *bench) fails(method string, err error, done bool) {
	if err == nil {
		b.driver.OnCall(method, nil)
		return
	}
	b.driver.OnCall(method, func(int, any) csitest.Action { return csitest.Action{Err: err, After: done} })
}

// deleteClaim deletes it whatever keeps it.
func (b *bench) deleteClaim(name string) {
	b.t.Helper()
	if err := b.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "ns",
		name); err != nil {
		b.t.Fatal(err)
	}
}

func capability(fs string, options ...string) *csipb.VolumeCapability {
	return &csipb.VolumeCapability{
		AccessType: &csipb.VolumeCapability_Mount{
			Mount: &csipb.VolumeCapability_MountVolume{FsType: fs, MountFlags: options},
		},
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

// asksFor is the whole request for a claim that wants nothing special.
func asksFor(name string) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: "pvc-u-" + name, CapacityRange: &csipb.CapacityRange{RequiredBytes: gib},
		VolumeCapabilities: []*csipb.VolumeCapability{capability("")},
	}
}

func deletes(name string, secrets map[string]string) *csipb.DeleteVolumeRequest {
	return &csipb.DeleteVolumeRequest{VolumeId: "id-pvc-u-" + name, Secrets: secrets}
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}
