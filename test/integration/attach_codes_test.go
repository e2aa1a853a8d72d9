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

// slip is a failure of one call for one volume, before or after the driver does the work.
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

// slipsUp creates a volume for each slip, and has the driver make it so many times,
// always if times is 0. again is called before the call that succeeds.
func (p *plane) slipsUp(all []slip, times int, again func(slip)) {
	p.t.Helper()
	byCall := map[string]slip{}
	for i := range all {
		all[i].handle = p.createBoundVolume(all[i].name())
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

// TestEveryCodeOnce: a driver answers one call with an error, whether it did the work or not, and works
// from then on. That call is repeated and no other call is, events of the attachment and of the Pod say it,
// and nothing is attached at the end.
func TestEveryCodeOnce(t *testing.T) {
	p := newPlane(t)
	all := slips(publishCall, unpublishCall)
	// A Pod gets events about why its volume is not attached, as long as it is not.
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
		p.createPod(s.name(), "n1", s.name())
	}
	for _, s := range all {
		if s.method == publishCall {
			p.waitForEvent("Pod", s.name(), volume.ReasonFailedAttach, s.code.String()+": slip "+s.name())
		}
		close(told[s.name()])
	}
	p.eventually(func() string { return p.fewer(len(all), "n1") })
	for _, s := range all {
		p.deletePod(s.name())
	}
	p.waitForDetached()
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
		p.waitForEvent("VolumeAttachment", attach.NameOf(p.conn.Name, s.handle, "n1"), reason, says)
	}
}

// TestUndoneAfterEveryCode: a driver attaches but always returns an error, and the Pod is deleted. Whatever
// the error was, the driver is called to detach.
func TestUndoneAfterEveryCode(t *testing.T) {
	p := newPlane(t)
	all := slices.DeleteFunc(slips(publishCall), func(s slip) bool { return !s.after })
	p.slipsUp(all, 0, func(slip) {})
	for _, s := range all {
		p.createPod(s.name(), "n1", s.name())
		p.waitForEvent("Pod", s.name(), volume.ReasonFailedAttach, s.code.String()+": slip "+s.name())
		p.deletePod(s.name())
	}
	p.waitForDetached()
	for _, s := range all {
		if got := p.callsFor(s.handle); got[len(got)-1] != unpublishCall {
			t.Errorf("%s: calls are %v", s.name(), got)
		}
	}
}
