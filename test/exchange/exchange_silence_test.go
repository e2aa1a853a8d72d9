package exchange

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi/csitest"
)

// silence decides which calls the driver does not answer before the caller exits.
type silence struct {
	mu sync.Mutex
	// done says for each method that is not answered whether its work is done.
	done map[string]bool
	// silent counts the calls without an answer.
	silent map[string]int
	ours   bool
	// asked are the names of volumes that volplane has requested, and so has recorded.
	asked map[string]bool
	calls []heard
}

func newSilence() *silence {
	return &silence{done: map[string]bool{}, silent: map[string]int{}, asked: map[string]bool{}}
}

// begin chooses methods that are not answered from now on.
func (s *silence) begin(r *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, method := range exchangedMethods() {
		if r.IntN(2) == 0 {
			s.done[method] = r.IntN(2) == 0
		}
	}
}

// end makes all calls be answered again.
func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.done)
	clear(s.silent)
}

// side sets the caller from now on.
func (s *silence) side(ours bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours = ours
}

func (s *silence) answer(method string, r proto.Message) csitest.Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := r.(*csipb.CreateVolumeRequest); ok && s.ours {
		s.asked[r.GetName()] = true
	}
	done, silent := s.done[method]
	s.calls = append(s.calls, heard{
		ours: s.ours, request: r, text: fmt.Sprintf("%s, done %t, answered %t: %v", method, !silent || done, !silent, r),
	})
	if !silent {
		return csitest.Action{}
	}
	s.silent[method]++
	return csitest.Action{Hang: true, After: done}
}

// waiting counts the calls without an answer, by method.
func (s *silence) waiting() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.silent)
}

// askedByOurs says whether volplane has requested a volume from the driver.
func (s *silence) askedByOurs(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// heard is a call that has reached the driver.
type heard struct {
	ours    bool
	request proto.Message
	text    string
}

// all returns the calls so far.
func (s *silence) all() []heard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// about returns the calls that name a volume.
func (s *silence) about(name string) string {
	var out strings.Builder
	for i, c := range s.all() {
		if strings.Contains(c.text, name) {
			fmt.Fprintf(&out, "%d, volplane calls %t: %s\n", i, c.ours, c.text)
		}
	}
	return out.String()
}
