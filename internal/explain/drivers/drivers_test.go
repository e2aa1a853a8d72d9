package drivers_test

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/why/whytest"
)

// TestAbsent: what is reported when a driver is not where it is needed.
func TestAbsent(t *testing.T) {
	whytest.Equal(t, "absent.txt", whytest.Written(t, whytest.AbsentRows(), func(*whytest.Scene) {}))
}

func TestNearest(t *testing.T) {
	names := []string{"ceph.example.com", "local.volplane.dev", "nfs.example.com"}
	for _, c := range []struct{ name, nearest, alike string }{
		{"lokal.volplane.dev", "local.volplane.dev", "local.volplane.dev"},
		{"local.volplane.dev", "local.volplane.dev", "local.volplane.dev"},
		{"cephexample.com", "ceph.example.com", "ceph.example.com"},
		{"nfs.example.org", "nfs.example.com", "nfs.example.com"},
		{"nothing", "nfs.example.com", ""},
	} {
		if got, alike := drivers.Nearest(c.name, names), drivers.Alike(c.name, names); got[0] != c.nearest ||
			alike != c.alike {
			t.Errorf("%s: nearest %s, alike %q; want %s, %q", c.name, strings.Join(got, " "), alike, c.nearest, c.alike)
		}
	}
	if drivers.Alike("x", nil) != "" || drivers.Alike("sx", []string{"sc"}) != "sc" {
		t.Error("of nothing something is chosen, or one letter is too much")
	}
}
