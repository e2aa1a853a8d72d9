package controller

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// TestLastingStates: a state is reported once, a second after it began, if each Reconcile until then has found it,
// however many there were. A state that has ended is not reported, and its second starts over.
func TestLastingStates(t *testing.T) {
	const waits, other, none = volume.ReasonWaitForFirstConsumer, volume.ReasonWaitForPodScheduled, volume.Reason("")
	type change struct {
		at time.Duration
		to volume.Reason
	}
	for name, c := range map[string]struct {
		changes []change
		told    []time.Duration
	}{
		"it lasts":           {[]change{{0, waits}}, []time.Duration{time.Second}},
		"it is looked at":    {[]change{{0, waits}, {300, waits}, {900, waits}}, []time.Duration{time.Second}},
		"it ends":            {[]change{{0, waits}, {5, none}}, nil},
		"it ends and begins": {[]change{{0, waits}, {600, none}, {700, waits}}, []time.Duration{1700 * time.Millisecond}},
		"another follows":    {[]change{{0, waits}, {600, other}}, []time.Duration{1600 * time.Millisecond}},
		"it is looked at later": {
			[]change{{0, waits}, {5000, waits}}, []time.Duration{time.Second, 6 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, is, key := time.Now(), none, Key{Kind: "claim", Name: "a"}
				var told []time.Duration
				c2 := &Controller{}
				c2.Reconcile = func(context.Context, Key) (Result, error) {
					if is == none {
						return Result{}, nil
					}
					pause := c2.Lasts(key, is)
					if pause == 0 {
						told = append(told, time.Since(begin))
					}
					return Result{After: pause}, nil
				}
				run(t, c2)
				for _, next := range c.changes {
					pass(next.at*time.Millisecond - time.Since(begin))
					is = next.to
					c2.Add(key)
					synctest.Wait()
				}
				pass(time.Minute)
				if !slices.Equal(told, c.told) || len(c2.lasting.since) != 0 {
					t.Errorf("reported at %v, want %v; remembered: %v", told, c.told, c2.lasting.since)
				}
			})
		})
	}
}
