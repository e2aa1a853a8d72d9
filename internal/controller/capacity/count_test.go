package capacity

import "testing"

// TestCount counts the objects that should exist, those of them that do, and the obsolete ones.
func TestCount(t *testing.T) {
	var count func() Count
	b := newBench(t, func(s *setup) { s.Count = func(f func() Count) { count = f } },
		places(late("fast"), object("fast", "a", "1Gi", ""), object("gone", "a", "1Gi", ""))...)
	b.idle()
	if got := count(); got != (Count{Goal: 2, Current: 1, Obsolete: 1}) {
		t.Errorf("counted %+v", got)
	}
	b.drivers.Remove(b.dialed)
	if got := count(); got != (Count{}) {
		t.Errorf("of no driver %+v", got)
	}
}
