package mount

import "testing"

// TestHideLater: a volume waits for those above it that are not mounted yet, and for no other.
func TestHideLater(t *testing.T) {
	for above, want := range map[Shown]bool{
		{Path: "/srv/a"}:                true,
		{Path: "/srv"}:                  true,
		{Path: "/srv/a", Mounted: true}: false,
		{Path: "/srv/a/b"}:              false,
		{Path: "/srv/a/b/c"}:            false,
		{Path: "/srv/a/bc"}:             false,
		{Path: "/sr"}:                   false,
	} {
		if got := HideLater("/srv/a/b", []Shown{above, {Path: "/var"}}); len(got) == 1 != want || want && got[0] != above {
			t.Errorf("%+v: %+v", above, got)
		}
	}
}
