package mount

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTableSeesEveryChange.
func TestTableSeesEveryChange(t *testing.T) {
	var table Table
	defer func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}()
	target := t.TempDir()
	for n := range 20 {
		for _, want := range []bool{true, false} {
			err := unix.Unmount(target, 0)
			if want {
				err = unix.Mount(fmt.Sprint("round", n), target, "tmpfs", 0, "")
			}
			if err != nil {
				t.Fatal(err)
			}
			points, err := table.Points()
			if err != nil {
				t.Fatal(err)
			}
			if p, mounted := points[target]; mounted != want || want && p.Source != fmt.Sprint("round", n) {
				t.Fatalf("round %d: %v %v, wanted %v", n, p, mounted, want)
			}
		}
	}
}
