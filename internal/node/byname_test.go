package node

import (
	"fmt"
	"os"
	"testing"

	"volplane.dev/volplane/internal/node/uses"
)

// TestReadsByName: an agent that reads by name has the volumes that its Pods and its journal name; one that finds
// something which no record explains has all.
func TestReadsByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = func(o *Options) { o.ByName = true }
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	w.addVolume(driverName, "foreign")
	w.addVolume(driverName, "a")
	w.run()
	w.registered(driverName)
	expect := func(when string, want ...string) {
		t.Helper()
		eventually(t, func() string {
			got := []string{}
			for _, pv := range w.agent.Caches.Volumes().List() {
				got = append(got, pv.Name)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Sprintf("%s: volumes %v, want %v", when, got, want)
			}
			return ""
		})
	}
	expect("without a Pod")
	w.pod("p", "a")
	w.awaitCondition("p", "True", "v-a=")
	expect("with a Pod", "pv-a")
	w.stop()
	w.run()
	expect("with a record", "pv-a")
	w.stop()
	w.must(nil, os.MkdirAll(uses.StagingPath(w.dir, driverName, "h-x", "pv-x", false), 0o700))
	w.run()
	expect("with something unexplained", "pv-a", "pv-foreign")
}
