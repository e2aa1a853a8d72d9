//go:build linux

package shell

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWidthOfTheTerminal: an output has the width of its terminal, and none if it is not a terminal.
func TestWidthOfTheTerminal(t *testing.T) {
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(control.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 47})
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if p, ok := asWideAs(terminal).(page); !ok || p.Columns() != 47 {
		t.Errorf("the width is that of %+v", p)
	}
	t.Setenv("COLUMNS", "60")
	if p, ok := asWideAs(terminal).(page); !ok || p.Columns() != 60 {
		t.Errorf("with $COLUMNS, the width is that of %+v", p)
	}
	t.Setenv("COLUMNS", "")
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if out := asWideAs(file); out != file {
		t.Errorf("a file is %+v", out)
	}
}
