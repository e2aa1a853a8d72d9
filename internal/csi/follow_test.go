package csi_test

import (
	"testing"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestADriverThatIsBackIsTold: subscribers are notified when a driver is back, even if no call is made; not when it has
// left the set.
func TestADriverThatIsBackIsTold(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	drivers := csi.NewSet()
	drivers.Put(c)
	told := make(chan string, 10)
	defer drivers.Subscribe(func(name string) { told <- name })()
	ctx := within(t, patience)
	go drivers.Follow(ctx)
	for range 2 {
		d.Restart()
		select {
		case name := <-told:
			if name != d.Name() {
				t.Errorf("notified of %q", name)
			}
		case <-ctx.Done():
			t.Fatal("no notification of a driver that is back")
		}
	}
	other := csitest.Start(t, csitest.Full())
	drivers.Remove(c)
	d.Restart()
	// The notification would arrive before the other driver's.
	drivers.Put(dial(t, other))
	for range 2 {
		select {
		case name := <-told:
			if name != other.Name() {
				t.Errorf("notified of %q, which has left the set", name)
			}
		case <-ctx.Done():
			t.Fatal("no notification")
		}
		other.Restart()
	}
}
