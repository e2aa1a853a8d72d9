package provisioner

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dies has the process do no write any more from its nth one on; that one is done
// if done says so, but nobody hears of it. It returns what ends that.
func (b *bench) dies(nth int, done bool) (lives func()) {
	count := 0
	b.api.Lock()
	defer b.api.Unlock()
	b.api.Fate = func(int, string) (bool, error) {
		if count++; count < nth {
			return true, nil
		}
		return count == nth && done, errLost
	}
	return func() {
		b.api.Lock()
		defer b.api.Unlock()
		b.api.Fate = nil
	}
}

// TestAStopBetweenAnyTwoSteps: wherever a process ends, the next ones leave just
// what has an object at the driver, and no intent.
func TestAStopBetweenAnyTwoSteps(t *testing.T) {
	for nth := 1; nth <= 4; nth++ {
		for _, done := range []bool{false, true} {
			for _, wanted := range []bool{false, true} {
				t.Run(fmt.Sprintf("write %d, done %v, wanted %v", nth, done, wanted), func(t *testing.T) {
					t.Parallel()
					source, copied := original()
					b := newBench(t, nil, clone(), class(), source)
					// The original is a volume of the driver, too.
					made := asksFor("source")
					if _, err := b.dialed.ControllerClient().CreateVolume(t.Context(), made); err != nil {
						t.Fatal(err)
					}
					copied.Spec.CSI.VolumeHandle = "id-pvc-u-source"
					if err := b.api.Tracker().Add(copied); err != nil {
						t.Fatal(err)
					}
					b.restart()
					lives := b.dies(nth, done)
					for range 2 {
						_, _ = b.reconcile(kindClaim, "u-c")
						_, _ = b.reconcile(kindLog, "")
					}
					b.stop()
					lives()
					if !wanted {
						b.deleteClaim("c")
					}
					b.start()
					for range 2 {
						b.works(kindClaim, "u-c")
						b.sweeps()
						b.restart()
					}
					b.works(kindClaim, "u-c")
					b.sweeps()
					b.open()
					b.agree(wanted)
				})
			}
		}
	}
}

// agree compares what is at the driver with the objects.
func (b *bench) agree(wanted bool) {
	b.t.Helper()
	all, err := b.api.CoreV1().PersistentVolumes().List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	var objects, volumes []string
	for i := range all.Items {
		objects = append(objects, all.Items[i].Spec.CSI.VolumeHandle)
	}
	for _, v := range b.driver.Volumes() {
		volumes = append(volumes, v.ID)
	}
	slices.Sort(objects)
	slices.Sort(volumes)
	if !slices.Equal(objects, volumes) || wanted && !slices.Contains(objects, "id-pvc-u-c") {
		b.t.Errorf("objects of %v, at the driver %v", objects, volumes)
	}
}
