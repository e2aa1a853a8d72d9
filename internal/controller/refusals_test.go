package controller

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestRefusal: a refusal concerns one request of one claim, and any later doubt cancels it: a controller that relied on
// it wrongly would request less than the volume has.
func TestRefusal(t *testing.T) {
	t.Parallel()
	r := NewRefusals()
	if r.Has("c", "2Gi") || r.Has("c", "") {
		t.Error("nothing was refused yet")
	}
	r.Record("c", "2Gi", true)
	if !r.Has("c", "2Gi") || r.Has("c", "3Gi") || r.Has("other", "2Gi") {
		t.Error("2Gi of one claim was refused")
	}
	r.Record("c", "2Gi", false)
	if r.Has("c", "2Gi") {
		t.Error("the refusal is not certain any more")
	}
	r.Record("c", "2Gi", true)
	r.Record("other", "2Gi", true)
	r.Forget("c")
	if r.Has("c", "2Gi") || !r.Has("other", "2Gi") {
		t.Error("one claim was to be forgotten")
	}
}

// TestPause: a pause begins with the first call, and ends; another refusal, or a forgotten claim, begins another one.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const length = 5 * time.Minute
		r := NewRefusals()
		is := func(claim types.UID, what string, want time.Duration) {
			t.Helper()
			if got := r.Pause(claim, what, length); got != want {
				t.Errorf("left alone for %s, wanted %s", got, want)
			}
		}
		is("c", "2Gi", length)
		<-time.After(time.Minute)
		is("c", "2Gi", length-time.Minute)
		is("other", "2Gi", length)
		<-time.After(length)
		is("c", "2Gi", 0)
		r.Record("c", "2Gi", true)
		is("c", "2Gi", 0)
		is("c", "3Gi", length)
		<-time.After(time.Minute)
		r.Forget("c")
		is("c", "3Gi", length)
		is("other", "2Gi", 0)
	})
}
