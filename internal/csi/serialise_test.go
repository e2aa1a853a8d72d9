package csi

import (
	"fmt"
	"testing"
)

// TestHold: who holds a key is alone with it, and nothing is kept of it then.
func TestHold(t *testing.T) {
	t.Parallel()
	l := NewVolumeLocks()
	count := map[string]int{}
	for range 3 {
		done := make(chan struct{})
		for i := range 50 {
			go func() {
				defer func() { done <- struct{}{} }()
				key := fmt.Sprint(i % 2)
				defer l.Hold(key)()
				if key == "0" {
					count[key]++
				}
			}()
		}
		for range 50 {
			<-done
		}
	}
	if count["0"] != 75 || len(l.busy) != 0 {
		t.Errorf("%d, %d left", count["0"], len(l.busy))
	}
}
