package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi"
)

// TestWhatIsDispensable: a resource is not needed only if no controller of the process needs it for the driver.
func TestWhatIsDispensable(t *testing.T) {
	plain, topology, attaches := &csi.Driver{}, &csi.Driver{}, &csi.Driver{}
	topology.Plugin.AccessibilityConstraints = true
	attaches.Controller.PublishUnpublish = true
	for _, c := range []struct {
		roles  string
		driver *csi.Driver
		onNode bool
		want   string
	}{
		{"attacher", attaches, false, "csidrivers nodes"},
		{"provisioner", plain, false, "csinodes nodes volumeattachments"},
		{"provisioner", attaches, false, "csinodes nodes"},
		{"provisioner", topology, false, "volumeattachments"},
		{"provisioner attacher", plain, false, "csidrivers nodes"},
		{"provisioner attacher", topology, false, "csidrivers"},
		{"provisioner capacity", plain, false, "volumeattachments"},
		{"resizer modifier snapshotter", plain, false, ""},
		{"provisioner capacity", topology, true, "csinodes nodes volumeattachments"},
		{"provisioner capacity attacher", topology, true, "csidrivers nodes"},
	} {
		var got []string
		for _, a := range allDispensable(strings.Fields(c.roles), c.driver, c.onNode) {
			got = append(got, a.Resource)
		}
		slices.Sort(got)
		if text := strings.Join(slices.Compact(got), " "); text != c.want {
			t.Errorf("%s, driver %+v: %s, want %s", c.roles, fmt.Sprint(c.driver.Plugin), text, c.want)
		}
	}
}

// TestWhatIsUnused: whether volumes need attaching is read only beside a driver that lists what is attached.
func TestWhatIsUnused(t *testing.T) {
	lists := &csi.Driver{}
	lists.Controller.ListVolumes, lists.Controller.ListVolumesPublishedNodes = true, true
	if got := unused(lists); len(got) > 0 {
		t.Errorf("beside a driver that lists: %v", got)
	}
	for _, change := range []func(*csi.Driver){
		func(d *csi.Driver) { d.Controller.ListVolumes = false },
		func(d *csi.Driver) { d.Controller.ListVolumesPublishedNodes = false },
	} {
		d := &csi.Driver{}
		d.Controller = lists.Controller
		change(d)
		if got := unused(d); !slices.Equal(got, []string{"csidrivers"}) {
			t.Errorf("beside a driver that does not list: %v", got)
		}
	}
}
