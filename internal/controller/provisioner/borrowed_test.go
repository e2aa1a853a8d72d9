package provisioner

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

func asksShot() *csipb.CreateVolumeRequest {
	r := asksFor("c")
	r.VolumeContentSource = &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: "shot"}},
	}
	return r
}

func asksCopy() *csipb.CreateVolumeRequest {
	r := asksFor("c")
	r.VolumeContentSource = copyOf("h")
	return r
}

// shotIs compares the whole snapshot but for its finalizers with shotBody, and
// those with what is wanted.
func (b *bench) shotIs(finalizers ...any) {
	b.t.Helper()
	var want map[string]any
	if err := json.Unmarshal([]byte(shotBody), &want); err != nil {
		b.t.Fatal(err)
	}
	want["metadata"].(map[string]any)["finalizers"] = finalizers
	if diff := cmp.Diff(any(want), b.api.snapshots.has(b.t, shotPath)); diff != "" {
		b.t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func (b *bench) written(want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.api.snapshots.written); diff != "" {
		b.t.Errorf("written to snapshots (-want +got):\n%s", diff)
	}
}

// restores is a bench with a claim that wants what is in a snapshot.
func restores(t *testing.T, f func(*setup), objects ...runtime.Object) *bench {
	t.Helper()
	c := claim("c")
	fromSnapshot(c)
	b := newBench(t, f, append(objects, c, class())...)
	b.withShot()
	return b
}

// TestASnapshotIsKeptWhileItIsRestored: the finalizer is on it before the driver
// is called and until the intent is resolved, whatever life does that; those of
// others stay.
func TestASnapshotIsKeptWhileItIsRestored(t *testing.T) {
	b := restores(t, nil)
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		b.shotIs(foreign, volume.FinalizerRestoring)
		b.open("u-c")
		return csitest.Action{Err: no(codes.Unavailable)}
	})
	b.errs(kindClaim, "u-c", "Unavailable")
	b.works(kindSnapshot, "shot")
	b.shotIs(foreign, volume.FinalizerRestoring)
	b.restart()
	b.forgetsWakes("snapshot/")
	b.works(kindSnapshot, "")
	b.forgetsWakes("snapshot/ns/shot")
	b.works(kindSnapshot, "shot")
	b.shotIs(foreign, volume.FinalizerRestoring)
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: no(codes.InvalidArgument)}
	})
	b.errs(kindClaim, "u-c", "InvalidArgument")
	b.forgetsWakes("snapshot/ns/shot")
	b.works(kindSnapshot, "shot")
	b.shotIs(foreign)
	b.called(asksShot(), asksShot())
	b.written("application/json "+shotPath, "application/json "+shotPath)
	b.works(kindSnapshot, "shot")
	b.written("application/json "+shotPath, "application/json "+shotPath)
}

// TestWhoseSnapshotIsLetGo: that of a driver that is here, or of nobody.
func TestWhoseSnapshotIsLetGo(t *testing.T) {
	protected := `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"namespace":"ns","name":"shot","uid":"u-shot","finalizers":["` + volume.FinalizerRestoring + `"]},"status":{"boundVolumeSnapshotContentName":"content"}}`
	others := `{"spec":{"driver":"other.example","volumeSnapshotRef":{"uid":"u-shot"}}}`
	for name, one := range map[string]struct {
		shot, content string
		let           bool
	}{
		"ours":          {protected, contentBody, true},
		"another's":     {protected, others, false},
		"nobody's":      {protected, "", true},
		"there is none": {"", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			for path, body := range map[string]string{shotPath: one.shot, contentPath: one.content} {
				if body != "" {
					b.api.snapshots.put(path, body)
				}
			}
			b.works(kindSnapshot, "shot")
			if let := len(b.api.snapshots.written) > 0; let != one.let {
				t.Errorf("written: %v", b.api.snapshots.written)
			}
		})
	}
	b := newBench(t, nil)
	b.withShot()
	b.api.snapshots.refuse("GET "+contentPath, 500)
	b.errs(kindSnapshot, "shot", "read content")
	b.api.snapshots.refuse("GET "+contentPath, 0)
	b.api.snapshots.put(shotPath, protected)
	b.api.snapshots.refuse("PUT "+shotPath, 409)
	b.errs(kindSnapshot, "shot", "protect snapshot ns/shot as a source")
	b.api.snapshots.refuse("PUT "+shotPath, 403)
	b.works(kindSnapshot, "shot")
}

// TestSnapshotsOfAnEarlierLife are looked for where there can be some.
func TestSnapshotsOfAnEarlierLife(t *testing.T) {
	b := newBench(t, nil)
	b.forgetsWakes("snapshot/")
	b.api.snapshots.put(shotPath, `{"metadata":{"namespace":"ns","name":"shot","finalizers":["a","`+
		volume.FinalizerRestoring+`"]}}`)
	b.api.snapshots.put("namespaces/ns/volumesnapshots/free",
		`{"metadata":{"namespace":"ns","name":"free","finalizers":["a"]}}`)
	b.works(kindSnapshot, "")
	b.wakes("snapshot/ns/shot")
	b.api.snapshots.refuse("GET volumesnapshots", 500)
	b.errs(kindSnapshot, "", "read volumesnapshots")

	b = newBench(t, nil)
	b.api.snapshots.absent = true
	b.works(kindSnapshot, "")

	for _, f := range []func(*setup){
		func(s *setup) { s.config.Controller.Snapshot = false }, func(s *setup) { s.late = true },
	} {
		b = newBench(t, f)
		b.api.snapshots.refuse("GET volumesnapshots", 500)
		b.works(kindSnapshot, "")
	}
}

// TestASnapshotThatCannotBeKept: without it nothing is begun; only where the right
// is missing all is as it was before there was this finalizer.
func TestASnapshotThatCannotBeKept(t *testing.T) {
	b := restores(t, nil)
	b.api.snapshots.refuse("PUT "+shotPath, http.StatusForbidden)
	b.works(kindClaim, "u-c")
	b.called(asksShot())

	b = restores(t, nil)
	b.api.snapshots.refuse("PUT "+shotPath, http.StatusConflict)
	b.errs(kindClaim, "u-c", "protect snapshot ns/shot as a source")
	b.called()
	b.sweeps()
	b.open("u-c")

	going := `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"uid":"u-shot","deletionTimestamp":"2026-01-01T00:00:00Z"}}`
	for _, now := range []func(){
		func() { delete(b.api.snapshots.bodies, shotPath) },
		func() { b.api.snapshots.put(shotPath, going) },
	} {
		b = restores(t, nil)
		b.api.PrependReactor("create", "configmaps",
			func(clienttesting.Action) (bool, runtime.Object, error) { now(); return false, nil, nil })
		b.errs(kindClaim, "u-c", "snapshot ns/shot: the source of its data is being deleted")
		b.called()
		b.told(warns(madeNo, "user", "snapshot ns/shot: the source of its data is being deleted"))
		b.sweeps()
		b.open()
	}
}

// TestASourceThatWentMeanwhile: what an earlier life may have made of it is
// learned, and a new intent ends.
func TestASourceThatWentMeanwhile(t *testing.T) {
	fromShot := func(in *provision.Intent) {
		in.Snapshot, in.SourceName, in.Secrets = "shot", "shot", provision.Secrets{}
	}
	fromClaim := func(in *provision.Intent) { in.Source, in.SourceName, in.Secrets = "h", "source", provision.Secrets{} }
	for _, one := range []struct {
		change func(*provision.Intent)
		asks   proto.Message
	}{{fromShot, asksShot()}, {fromClaim, asksCopy()}} {
		b := newBench(t, nil, left(one.change), claim("c"), class())
		b.fails("CreateVolume", no(codes.NotFound), false)
		b.errs(kindClaim, "u-c", "NotFound")
		b.called(one.asks)
	}
	source, copied := original()
	gone := apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), "source")
	invalid := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind(), "source", nil)
	for _, err := range []error{gone, invalid} {
		b := newBench(t, nil, clone(), class(), source, copied)
		b.api.Refuse("update", "persistentvolumeclaims", err)
		b.errs(kindClaim, "u-c", "claim ns/source: the source of its data is being deleted")
		b.called()
		b.told(warns(madeNo, "user", "claim ns/source: the source of its data is being deleted"))
		b.sweeps()
		b.open()
	}
	b := newBench(t, nil, clone(), class(), source, copied)
	b.api.Refuse("update", "persistentvolumeclaims", errLost)
	b.errs(kindClaim, "u-c", "update claim ns/source: the answer is lost")
	b.called()
	b.sweeps()
	b.open("u-c")
}

// TestAClaimIsKeptWhileItIsCopied, and let go when it is deleted and no copy is
// made any more; the next copy needs no write.
func TestAClaimIsKeptWhileItIsCopied(t *testing.T) {
	source, copied := original()
	source.Finalizers = append(source.Finalizers, volume.FinalizerCloning)
	b := newBench(t, nil, clone(), class(), source, copied)
	b.fails("CreateVolume", no(codes.Unavailable), false)
	b.errs(kindClaim, "u-c", "Unavailable")
	b.wrote("create configmaps volplane-intents-1")
	if err := b.api.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "source",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	going, err := b.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "source", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.claims.Wrote(going)
	b.works(kindClaim, "u-source")
	b.claimIs(source)
	b.forgetsWakes("snapshot/")
	b.fails("CreateVolume", no(codes.InvalidArgument), false)
	b.until("an end", b.calls(2))
	b.forgetsWakes("claim/u-source")
	b.works(kindClaim, "u-source")
	free := source.DeepCopy()
	free.Finalizers = []string{foreign}
	b.claimIs(free)
	b.works(kindClaim, "u-source")
	b.wrote("create configmaps volplane-intents-1", "delete persistentvolumeclaims source",
		"update persistentvolumeclaims source")
}

// TestWhoLetsAClaimGo: the process that reaches the driver of its volume, whoever
// was asked for it.
func TestWhoLetsAClaimGo(t *testing.T) {
	for name, one := range map[string]struct {
		asked, has string
		late, let  bool
	}{
		"ours":                     {driverName, driverName, false, true},
		"ours, by the volume":      {"", driverName, false, true},
		"another's, by the volume": {driverName, "other.example", false, false},
		"of no driver":             {driverName, "", false, true},
		"the driver is away":       {driverName, driverName, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			source, v := original()
			source.Annotations[volume.AnnStorageProvisioner] = one.asked
			source.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
			source.Finalizers = append(source.Finalizers, volume.FinalizerCloning)
			if v.Spec.CSI.Driver = one.has; one.has == "" {
				v.Spec.CSI = nil
			}
			b := newBench(t, func(s *setup) { s.late = one.late }, source, v)
			b.works(kindClaim, "u-source")
			if one.let {
				source.Finalizers = []string{foreign}
			}
			b.claimIs(source)
			b.called()
		})
	}
	source, v := original()
	source.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
	b := newBench(t, nil, source, v)
	b.works(kindClaim, "u-source")
	b.wrote()
}

// TestACloneThatIsDeletedMeanwhile is looked at when its intent is resolved: it may
// be the source of others.
func TestACloneThatIsDeletedMeanwhile(t *testing.T) {
	c := claim("c")
	c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Unix(1e9, 0)}, []string{foreign}
	b := newBench(t, nil, left(), key(), c)
	// The first look at the log wakes what is open.
	b.sweeps()
	b.setup.Requests.Ask("u-last", driverName)
	b.forgetsWakes("claim/u-last")
	b.works(kindClaim, "u-c")
	b.called(asksWith(keyed()), deletes("c", keyed()))
	b.wakes("claim/u-c", "intents/")
}

// TestWhatALostNodeWasCopying is let go by a control plane that has no driver, when the Node goes; what a node has
// that is not lost stays.
func TestWhatALostNodeWasCopying(t *testing.T) {
	for _, lost := range []bool{true, false} {
		notes := map[string]string{volume.AnnProvisionedOn: "n1"}
		content := `{"metadata":{"name":"content","annotations":{"volplane.dev/provisioned-on":"n1"}},` + contentBody[len(`{"metadata":{"name":"content"},`):]
		if lost {
			notes[volume.AnnLostWith] = "n1"
			content = strings.Replace(content, `on":"n1"`, `on":"n1","volplane.dev/lost-with":"n1"`, 1)
		}
		source, v := original()
		source.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
		source.Finalizers = append(source.Finalizers, volume.FinalizerCloning)
		v.Annotations = notes
		b := newBench(t, func(s *setup) { s.late, s.hears, s.Intents = true, true, Standalone() }, source, v,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		b.api.snapshots.put(shotPath, strings.Replace(shotBody, `"example.org/foreign"`,
			`"example.org/foreign","`+volume.FinalizerRestoring+`"`, 1))
		b.api.snapshots.put(contentPath, content)
		b.works(kindClaim, "u-source")
		b.forgetsWakes("snapshot/")
		if err := b.api.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.forgetsWakes("snapshot/")
		b.works(kindSnapshot, "")
		b.forgetsWakes("snapshot/ns/shot")
		b.works(kindSnapshot, "shot")
		if !lost {
			b.claimIs(source)
			b.shotIs(foreign, volume.FinalizerRestoring)
			continue
		}
		source.Finalizers = []string{foreign}
		b.claimIs(source)
		b.shotIs(foreign)
	}
}

// TestAnEmptyVolumeIsNoCopy: it is deleted, for it would look like lost data.
func TestAnEmptyVolumeIsNoCopy(t *testing.T) {
	source, copied := original()
	empty := func(int, any) csitest.Action {
		return csitest.Action{
			Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: "id-pvc-u-c", CapacityBytes: gib}},
		}
	}
	b := newBench(t, nil, clone(), class(), source, copied)
	b.driver.OnCall("CreateVolume", empty)
	b.errs(kindClaim, "u-c", "made an empty volume instead of a copy")
	b.called(asksCopy(), deletes("c", nil))
	b.volumesAre(copied)

	b = restores(t, nil)
	b.driver.OnCall("CreateVolume", empty)
	b.errs(kindClaim, "u-c", "made an empty volume instead of restoring the snapshot")
	b.called(asksShot(), deletes("c", nil))
	b.volumesAre()
}

// TestOnlyWhoKnowsTheIntents is told about sources: one that names none is passed
// over, and keeps nothing.
func TestOnlyWhoKnowsTheIntents(t *testing.T) {
	m := left()
	m.Data["u-c"] = "{"
	b := newBench(t, nil, m)
	b.api.snapshots.put(shotPath, `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"namespace":"ns","name":"shot","uid":"u-shot","finalizers":["`+volume.FinalizerRestoring+`"]}}`)
	b.works(kindSnapshot, "shot")
	b.written("application/json " + shotPath)
}

// TestLacks: a driver without controller service has no capability of it either.
func TestLacks(t *testing.T) {
	for want, d := range map[string]*csi.Driver{
		"CONTROLLER_SERVICE":   {},
		"CREATE_DELETE_VOLUME": {Plugin: csi.PluginCapabilities{ControllerService: true}},
		"": {
			Plugin: csi.PluginCapabilities{ControllerService: true}, Controller: csi.ControllerCapabilities{CreateDelete: true},
		},
	} {
		if got := lacks(d); got != want {
			t.Errorf("lacks %q, want %q", got, want)
		}
	}
}
