package snapshotmetadata

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// announcedAt returns an object that a control plane has made for an address, with the UID of its CSIDriver.
func announcedAt(address string, owner types.UID) *cluster.SnapshotMetadataService {
	return announced{
		spec:   cluster.SnapshotMetadataServiceSpec{Address: address, Audience: "us", CACert: []byte("ca")},
		owners: map[string]types.UID{driverName: owner},
	}.complete(&cluster.SnapshotMetadataService{ObjectMeta: metav1.ObjectMeta{
		Name: driverName, UID: "7", Labels: map[string]string{volume.LabelMadeBy: volume.Program},
	}})
}

// TestAnnouncements: an object that volplane has made says what is so, and goes when it no longer is; one that others
// have made stays.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	theirs := announcedAt("proxy:1", "")
	theirs.Labels = nil
	for name, c := range map[string]struct {
		serves, called bool
		have           *cluster.SnapshotMetadataService
		want           string
	}{
		"a driver that knows changed blocks": {true, true, nil, "create here:1 of 1"},
		"one that does not":                  {false, true, nil, ""},
		"one that is not called":             {false, false, announcedAt("there:1", "1"), ""},
		"it is announced":                    {true, true, announcedAt("here:1", "1"), ""},
		"another address":                    {true, true, announcedAt("there:1", "1"), "update here:1 of 1"},
		"the CSIDriver was made again":       {true, true, announcedAt("here:1", "0"), "update here:1 of 1"},
		"a driver that no longer does":       {false, true, announcedAt("here:1", "1"), "delete here:1 of 1"},
		"others announce it":                 {true, true, theirs, ""},
		"others announce what is not":        {false, true, theirs, ""},
	} {
		f := announced{
			spec: announcedAt("here:1", "").Spec, owners: map[string]types.UID{driverName: "1"}, serves: map[string]bool{},
			have: map[string]*cluster.SnapshotMetadataService{},
		}
		if c.called {
			f.serves[driverName] = c.serves
		}
		if c.have != nil {
			f.have[driverName] = c.have
		}
		var got []string
		p := f.plan()
		for verb, all := range map[string][]*cluster.SnapshotMetadataService{
			"create": p.create, "update": p.update, "delete": p.remove,
		} {
			for _, s := range all {
				got = append(got, fmt.Sprintf("%s %s of %s", verb, s.Spec.Address, s.OwnerReferences[0].UID))
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAnnounce: a driver is announced when it is called, as soon as the API server lets it; only by the control plane
// that has the volumes of no node.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := kubetest.NewAPI(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, UID: "1"}})
		var serves atomic.Bool
		a.PrependReactor("create", volume.ResourceMetadataServices,
			func(clienttesting.Action) (bool, runtime.Object, error) {
				return !serves.Load(), nil, apierrors.NewNotFound(resource(), "x")
			})
		client, drivers := kubetest.Customized(a.Client(AnnouncementRights)), csi.NewSet()
		says := func() string {
			t.Helper()
			all, err := kube.NewSnapshotObjects(client).MetadataServices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var out []string
			for _, s := range all {
				out = append(out, s.Name+" at "+s.Spec.Address+" of "+string(s.OwnerReferences[0].UID))
			}
			return strings.Join(out, ", ")
		}
		ctx := t.Context()
		go func() {
			_ = Announcement{
				Drivers: drivers, Client: client, Spec: announcedAt("here:1", "").Spec, Log: slog.New(slog.DiscardHandler),
			}.Run(ctx)
		}()
		d := csitest.InMemory(t, csitest.Config{Plugin: csi.PluginCapabilities{SnapshotMetadata: true}}).
			Dial(csi.WithNodeOnly())
		serves.Store(true)
		drivers.Put(d.In(volume.Scope{Node: "two"}))
		synctest.Wait()
		if got := says(); got != "" {
			t.Errorf("one that has the volumes of its node announces %s", got)
		}
		serves.Store(false)
		drivers.Put(d.In(volume.Scope{Node: "one", Rest: true}))
		synctest.Wait()
		serves.Store(true)
		kubetest.Pass(announcePause)
		if got := says(); got != driverName+" at here:1 of 1" {
			t.Error(got)
		}
	})
}
