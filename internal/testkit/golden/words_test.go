package golden

import (
	"strings"
	"testing"
	"time"
)

// TestRead: each word is the field of its name, whatever its kind.
func TestRead(t *testing.T) {
	type observed struct{ Mounted, Dead bool }
	type facts struct {
		observed
		InUse, Alarm bool
		Stage        string
		Size         int64
		Answer       int
		Apart        time.Duration
	}
	got := facts{Alarm: true}
	Read(t, &got, strings.Fields("in-use alarm=false stage=staged size=2Mi answer=3 apart=1m30s dead"))
	want := facts{
		observed: observed{Dead: true}, InUse: true, Stage: "staged", Size: 2 << 20, Answer: 3, Apart: 90 * time.Second,
	}
	if got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
}
