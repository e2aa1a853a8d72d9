package retry

import (
	"testing"
	"time"
)

// TestTry: what a controller knows of a try is read from the annotations as it was written, and nothing else is.
func TestTry(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("east", 3600))
	for name, c := range map[string]struct {
		try  Try
		want Try
	}{
		"nothing":    {},
		"all":        {Try{3, at, time.Minute}, Try{3, time.Date(2026, 1, 2, 2, 4, 6, 0, time.UTC), time.Minute}},
		"impossible": {Try{Number: -1, Within: -time.Second}, Try{}},
	} {
		if got := TryOf(c.try.Notes()); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if n := len((Try{}).Notes()); n > 0 {
		t.Errorf("%d notes of nothing", n)
	}
}
