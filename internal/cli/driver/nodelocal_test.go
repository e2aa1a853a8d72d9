package driver

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/volume"
)

// TestPlanNodeLocal: a driver becomes node-local beside its processes, and stays so if nothing is said.
func TestPlanNodeLocal(t *testing.T) {
	local := func(d driverfile.Driver, is bool) driverfile.Driver {
		d.NodeLocal = is
		return d
	}
	a, b := own("/bin/a"), own("/bin/b")
	for name, c := range map[string]struct {
		before        driverfile.Driver
		d             driverfile.Driver
		replace, said bool
		deed          string
		want          bool
	}{
		"said":                         {a, local(a, true), false, true, deedConfigured, true},
		"said again":                   {local(a, true), local(a, true), false, true, deedUnchanged, true},
		"not said":                     {local(a, true), a, false, false, deedUnchanged, true},
		"not said of another":          {local(a, true), b, true, false, deedConfigured, true},
		"said of another":              {a, local(b, true), false, true, "", true},
		"taken back":                   {local(a, true), a, false, true, "", false},
		"taken back, with --replace":   {local(a, true), a, true, true, deedConfigured, false},
		"never said, and not said now": {a, a, false, false, deedUnchanged, false},
	} {
		deed, d, err := planAdd(&c.before, c.d, c.replace, c.said)
		if deed != c.deed || d.NodeLocal != c.want || (err != nil) != (c.deed == "") {
			t.Errorf("%s: %s, node-local %t, %v", name, deed, d.NodeLocal, err)
		}
	}
}

// TestNodeLocal: the CSIDriver says that a driver is node-local, unless a volume would be left without its host.
func TestNodeLocal(t *testing.T) {
	object := func(controllers string) *storagev1.CSIDriver {
		o := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: hosted}}
		if controllers != "" {
			o.Annotations = map[string]string{volume.AnnControllers: controllers}
		}
		return o
	}
	pv := func(name, driver, node string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
		if node != "" {
			v.Annotations = map[string]string{volume.AnnProvisionedOn: node}
		}
		return v
	}
	for name, c := range map[string]nodeLocalCase{
		"an object of somebody": {
			objects: []runtime.Object{object(""), pv("o", "other", ""), pv("b", hosted, "n2")},
			want:    "csidriver/x.example.com annotated: volplane.dev/controllers=nodes\n", local: true,
		},
		"it says so": {objects: []runtime.Object{object("nodes"), pv("a", hosted, "")}, local: true},
		"volumes without a host": {
			objects: []runtime.Object{object(""), pv("b", hosted, ""), pv("a", hosted, ""), pv("c", hosted, "n2")},
			refused: "has 2 PersistentVolumes that do not say which host has them (a, b): once it is node-local",
		},
		"volumes without an object": {
			objects: []runtime.Object{pv("a", hosted, "")}, refused: "kubectl annotate pv a volplane.dev/provisioned-on=n1",
		},
		"something else is said": {
			objects: []runtime.Object{object("n2")}, refused: `volplane.dev/controllers="n2": remove it`,
		},
		"a host that has joined": {
			objects: []runtime.Object{object("")}, joined: true,
			told: "kubectl annotate csidriver x.example.com volplane.dev/controllers=nodes",
		},
	} {
		t.Run(name, c.run)
	}
}

// nodeLocalCase is a row of TestNodeLocal.
type nodeLocalCase struct {
	objects []runtime.Object
	joined  bool
	// refused is a part of the error; if it is empty, want is what is printed in addition to what is always printed,
	// told is a part of the messages, and local is what the CSIDriver says then.
	refused, want, told string
	local               bool
}

func (c nodeLocalCase) run(t *testing.T) {
	s := newStand(t, append(c.objects, csiNode("n1", hosted))...)
	if c.joined {
		forbid(s, "list", "persistentvolumes")
		forbid(s, "patch", "csidrivers")
	}
	d := external("/run/x")
	d.NodeLocal = true
	err := s.add(t.Context(), d, addFlags{wait: patience})
	if c.refused != "" {
		if _, has := s.files.Get(hosted); has == nil || err == nil || !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%v", err)
		}
		return
	}
	const always = "driver/x.example.com created\ndriver/x.example.com registered on node n1\n"
	if err != nil || s.out.String() != always+c.want || !strings.Contains(s.err.String(), c.told) {
		t.Errorf("%v\n%s%s", err, s.out, s.err)
	}
	o, err := s.client.StorageV1().CSIDrivers().Get(t.Context(), hosted, metav1.GetOptions{})
	if err != nil || volume.IsNodeLocal(o.Annotations) != c.local {
		t.Errorf("%v: %q", err, o.Annotations)
	}
}

// forbid refuses a kind of request.
func forbid(s stand, verb, resource string) {
	refuse := func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("a node"))
	}
	s.client.PrependReactor(verb, resource, refuse)
}

// TestNodeLocalBlindly: without the API, the file alone says it, and the agent makes the object.
func TestNodeLocalBlindly(t *testing.T) {
	s := newStand(t)
	s.hostDrivers.client, s.absent = nil, errors.New("no API server answers")
	d := external("/run/x")
	d.NodeLocal = true
	if err := s.add(context.Background(), d, addFlags{wait: patience}); err != nil {
		t.Error(err)
	}
	if got, err := s.files.Get(hosted); err != nil || !got.NodeLocal {
		t.Errorf("%+v, %v", got, err)
	}
}
