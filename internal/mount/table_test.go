package mount

import (
	"errors"
	"fmt"
	"strings"
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

// TestTableBelow: the mounts at a directory and below it, but not beside it, and not those that no path reaches.
func TestTableBelow(t *testing.T) {
	var table Table
	defer table.Close()
	g := newGrove(t)
	for _, dir := range []string{"a", "a-b", "a/sub", "a/sub/deep", "b/hidden", "b"} {
		g.mount(dir)
	}
	for dir, want := range map[string]string{
		"a": "a a/sub a/sub/deep", "a/sub": "a/sub a/sub/deep", "a-b": "a-b", "b": "b", "c": "", "a/su": "",
	} {
		points, err := table.Below(g.at(dir))
		var got []string
		for _, p := range points {
			got = append(got, p.Source)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("below %s: %v, %v; want %s", dir, got, err, want)
		}
		if mounted, err := table.Mounted(g.at(dir)); err != nil || mounted != (want != "") {
			t.Errorf("%s is mounted: %v, %v", dir, mounted, err)
		}
	}
	if mounted, err := table.Mounted(g.at("b/hidden")); !errors.Is(err, ErrHidden) {
		t.Errorf("what is hidden: %v, %v", mounted, err)
	}
}
