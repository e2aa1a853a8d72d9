package integration

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

const (
	publishCall   = "ControllerPublishVolume"
	unpublishCall = "ControllerUnpublishVolume"
)

// slip is one call for one volume that fails, before or after the work.
type slip struct {
	method string
	code   codes.Code
	after  bool
	handle string
}

func (s slip) name() string {
	return strings.ToLower(fmt.Sprintf("%s-%d-%v", strings.TrimSuffix(s.method, "Volume"), s.code, s.after))
}

func slips(methods ...string) []slip {
	var all []slip
	for _, method := range methods {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			all = append(all, slip{method: method, code: code}, slip{method: method, code: code, after: true})
		}
	}
	return all
}

// slipsUp makes a volume for each slip, and has the driver make it so many times,
// always when it is 0. Before the call that goes well then comes whatever again
// does.
func (p *plane) slipsUp(all []slip, times int, again func(slip)) {
	p.t.Helper()
	byCall := map[string]slip{}
	for i := range all {
		all[i].handle = p.wire(all[i].name())
		byCall[all[i].method+all[i].handle] = all[i]
	}
	var mu sync.Mutex
	made := map[string]int{}
	for _, method := range []string{publishCall, unpublishCall} {
		p.driver.OnCall(method, func(_ int, req any) csitest.Action {
			call := method + req.(interface{ GetVolumeId() string }).GetVolumeId()
			mu.Lock()
			made[call]++
			s, ok := byCall[call]
			n := made[call]
			mu.Unlock()
			if ok && n == times+1 {
				again(s)
			}
			if !ok || times > 0 && n > times {
				return csitest.Action{}
			}
			return csitest.Action{After: s.after, Err: status.Error(s.code, "slip "+s.name())}
		})
	}
}

// callsFor returns the calls that attach and detach one volume.
func (p *plane) callsFor(handle string) []string {
	var out []string
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(interface{ GetVolumeId() string }); ok && r.GetVolumeId() == handle &&
			strings.HasPrefix(c.Method, "Controller") {
			out = append(out, c.Method)
		}
	}
	return out
}

// TestEveryCodeOnce: a driver answers one call with an error, with the work done
// or not, and goes well from then on: that call is repeated, no other is, the
// attachment and the Pod are told, and nothing is attached at the end.
func TestEveryCodeOnce(t *testing.T) {
	p := newPlane(t)
	all := slips(publishCall, unpublishCall)
	// A Pod is told why its volume is not attached, as long as it is not.
	told := map[string]chan struct{}{}
	for _, s := range all {
		told[s.name()] = make(chan struct{})
	}
	p.slipsUp(all, 1, func(s slip) {
		if s.method == publishCall {
			select {
			case <-told[s.name()]:
			case <-p.ctx.Done():
			}
		}
	})
	for _, s := range all {
		p.pod(s.name(), "n1", s.name())
	}
	for _, s := range all {
		if s.method == publishCall {
			p.tells("Pod", s.name(), volume.ReasonFailedAttach, s.code.String()+": slip "+s.name())
		}
		close(told[s.name()])
	}
	p.eventually(func() string { return p.fewer(len(all), "n1") })
	for _, s := range all {
		p.removePod(s.name())
	}
	p.detached()
	for _, s := range all {
		want := []string{publishCall, unpublishCall}
		want = slices.Insert(want, slices.Index(want, s.method), s.method)
		if got := p.callsFor(s.handle); !slices.Equal(got, want) {
			t.Errorf("%s: calls are %v, not %v", s.name(), got, want)
		}
		reason, says := volume.ReasonFailedDetach, s.code.String()+": slip "+s.name()
		if s.method == publishCall {
			reason = volume.ReasonFailedAttach
		}
		p.tells("VolumeAttachment", attach.NameOf(p.conn.Name, s.handle, "n1"), reason, says)
	}
}

// TestUndoneAfterEveryCode: a driver attaches and never says so, and the Pod
// goes: whatever it said instead, it is asked to detach.
func TestUndoneAfterEveryCode(t *testing.T) {
	p := newPlane(t)
	all := slices.DeleteFunc(slips(publishCall), func(s slip) bool { return !s.after })
	p.slipsUp(all, 0, func(slip) {})
	for _, s := range all {
		p.pod(s.name(), "n1", s.name())
		p.tells("Pod", s.name(), volume.ReasonFailedAttach, s.code.String()+": slip "+s.name())
		p.removePod(s.name())
	}
	p.detached()
	for _, s := range all {
		if got := p.callsFor(s.handle); got[len(got)-1] != unpublishCall {
			t.Errorf("%s: calls are %v", s.name(), got)
		}
	}
}
