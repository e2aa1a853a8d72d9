package kube

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// parameterSpace is a parameter of every class that tells the driver which sequence a volume belongs to.
const parameterSpace = "space"

// storage is a side's driver, which fails as the sequences want it to. A side that only binds has a storage
// without a driver.
type storage struct {
	driver *csitest.Driver

	mu     sync.Mutex
	faults map[string]*fault
	spaces map[string]string
	// answers are the errors so far, one line each, by sequence.
	answers map[string]map[string]bool
	// segments is where volumes are; nil is everywhere.
	segments map[string][]*csipb.Topology
	// silent says that calls get no answer, and whether they do their work.
	silent anew
	// moods are what the driver tells of snapshots, by sequence.
	moods map[string]mood
}

// told is the size that a driver returns for a volume.
type told int

const (
	right told = iota
	half
	nothing
)

func (t told) String() string { return []string{"the right size", "half the size", "no size"}[t] }

// of returns the claim whose UID is the first one in a text.
func (t told) of(bytes int64) int64 { return []int64{bytes, bytes / 2, 0}[t] }

// fault says how calls of a method fail in a sequence.
type fault struct {
	code codes.Code
	// told is what the driver tells of the size, without an error, unless it is
	// right.
	told told
	// times is how often that happens to each volume; 0 is always. After has
	// the driver do its work nevertheless.
	times int
	after bool
	seen  map[string]int
}

func newStorage() *storage {
	return &storage{
		faults: map[string]*fault{}, spaces: map[string]string{}, answers: map[string]map[string]bool{},
		moods: map[string]mood{},
	}
}

// start starts the driver.
func (s *storage) start(t *testing.T, change func(*csitest.Config)) *csi.Set {
	t.Helper()
	driver, drivers := startDriver(t, change,
		func(c *csitest.Config) { c.Controller.Snapshot, c.Snapshots = true, []string{shot} })
	s.driver = driver
	driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action {
		r := req.(*csipb.CreateVolumeRequest)
		s.mu.Lock()
		s.spaces["id-"+r.GetName()] = r.GetParameters()[parameterSpace]
		s.mu.Unlock()
		action, size := s.action(r.GetParameters()[parameterSpace], "CreateVolume", r.GetName())
		if action.Err == nil && !action.Hang {
			action.After, action.Answer = true, s.answer(r, size)
		}
		return action
	})
	driver.OnCall("DeleteVolume", func(_ int, req any) csitest.Action {
		id := req.(*csipb.DeleteVolumeRequest).GetVolumeId()
		s.mu.Lock()
		space := s.spaces[id]
		s.mu.Unlock()
		action, _ := s.action(space, "DeleteVolume", id)
		return action
	})
	for _, method := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume"} {
		driver.OnCall(method, func(_ int, req any) csitest.Action {
			id := req.(interface{ GetVolumeId() string }).GetVolumeId()
			action, _ := s.action(newMemory().space.FindString(id), method, id)
			if action.Hang {
				s.keptBack(method, id, req.(interface{ GetNodeId() string }).GetNodeId(), action.After)
			}
			return action
		})
	}
	return drivers
}

// action returns the outcome of a call, and the size in its answer.
func (s *storage) action(space, method, volume string) (csitest.Action, told) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space != "" && s.silent.silences() {
		if !strings.HasPrefix(method, "Controller") {
			note(s.answers, space, unanswered+method+" of "+volume)
		}
		return csitest.Action{After: s.silent == afterwards, Hang: true}, right
	}
	f := s.faults[space+" "+method]
	if f == nil {
		return csitest.Action{}, right
	}
	f.seen[volume]++
	if f.times > 0 && f.seen[volume] > f.times {
		return csitest.Action{}, right
	}
	if f.told != right {
		note(s.answers, space, "answered "+method+" of "+volume+" with "+f.told.String())
		return csitest.Action{}, f.told
	}
	note(s.answers, space, "answered "+method+" of "+volume+" with "+f.code.String())
	return csitest.Action{After: f.after, Err: status.Error(f.code, "as the test wants")}, right
}

// keptBack records a call about a volume and a node that gets no answer, and whether its work is done.
func (s *storage) keptBack(method, volume, node string, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note(s.answers, newMemory().space.FindString(volume),
		fmt.Sprintf("%s%s of %s at %s, done: %v", unanswered, method, volume, node, done))
}

// answer returns the driver's answer about a volume that it has created.
func (s *storage) answer(r *csipb.CreateVolumeRequest, size told) *csipb.CreateVolumeResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: "id-" + r.GetName(), CapacityBytes: size.of(r.GetCapacityRange().GetRequiredBytes()),
		ContentSource: r.GetVolumeContentSource(),
		VolumeContext: map[string]string{"name": r.GetName()}, AccessibleTopology: s.placed(r),
	}}
}

// note adds a line to those of a sequence.
func note(all map[string]map[string]bool, space, line string) {
	if all[space] == nil {
		all[space] = map[string]bool{}
	}
	all[space][line] = true
}

// fail has calls fail from now on.
func (s *storage) fail(space, method string, f fault) {
	f.seen = map[string]int{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[space+" "+method] = &f
}

// keepSilent has calls get no answer, or ends that.
func (s *storage) keepSilent(how anew) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = how
}

// heal ends the faults of a sequence, or of all sequences when space is "".
func (s *storage) heal(space string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.faults {
		if space == "" || strings.HasPrefix(k, space+" ") {
			delete(s.faults, k)
		}
	}
	for k := range s.moods {
		if space == "" || k == space {
			delete(s.moods, k)
		}
	}
}

// calls returns the number of calls by method.
func (s *storage) calls() map[string]int {
	out := map[string]int{}
	for _, m := range s.driver.Methods() {
		out[m]++
	}
	return out
}

// memory remembers deleted claims and the calls of the driver.
type memory struct {
	claims map[types.UID]claimName
	// calls is how many calls of the driver are in asked: the lines by
	// sequence, each once.
	calls int
	asked map[string]map[string]bool
	// left is what was attached for no Pod when the driver began to need
	// attaching again, one line each, by sequence.
	left map[string]map[string]bool
	// uid finds a UID in a text, space the name of a sequence, member that of a
	// claim like those of a StatefulSet.
	uid, space, member *regexp.Regexp
	// naming returns the name of the volume that is made for a claim, if it is not the usual one.
	naming func(types.UID) string
}

type claimName struct{ space, name string }

func newMemory() *memory {
	return &memory{
		claims: map[types.UID]claimName{}, asked: map[string]map[string]bool{}, left: map[string]map[string]bool{},
		uid: regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), space: regexp.MustCompile(`g[0-9]+-s[0-9]+`),
		member: regexp.MustCompile(`\b(c[0-9]+)-web-[0-9]+\b`),
	}
}

// of returns the claim whose UID is the first one in a text.
func (m *memory) of(text string) claimName {
	return m.claims[types.UID(m.uid.FindString(m.usual(text)))]
}

// volume returns the name of the volume that is made for a claim.
func (m *memory) volume(uid types.UID) string {
	if m.naming != nil {
		return m.naming(uid)
	}
	return "pvc-" + string(uid)
}

// usual gives the volumes that were made for claims their usual names.
func (m *memory) usual(text string) string {
	if m.naming != nil {
		for uid := range m.claims {
			text = strings.ReplaceAll(text, m.naming(uid), "pvc-"+string(uid))
		}
	}
	return text
}

// named replaces the UIDs of claims by their names.
func (m *memory) named(text string) string {
	return m.uid.ReplaceAllStringFunc(m.usual(text), func(uid string) string {
		if c, ok := m.claims[types.UID(uid)]; ok {
			return c.name
		}
		return uid
	})
}

// short replaces the UIDs of all claims by the same word.
func (m *memory) short(text string) string { return m.member.ReplaceAllString(text, "$1") }

// stored adds a line for each volume of the driver and for each call.
func (s side) stored(out state) error {
	if s.storage.driver == nil {
		return nil
	}
	calls := s.storage.driver.Calls()
	for _, c := range calls[s.memory.calls:] {
		if !slices.Contains([]string{
			"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "CreateSnapshot",
			"DeleteSnapshot", "ListSnapshots", methodModify,
		}, c.Method) {
			continue
		}
		text, err := json.Marshal(c.Request)
		if err != nil {
			return err
		}
		space := s.spaceOf(string(text))
		note(s.memory.asked, space, "asked "+c.Method+" "+s.memory.named(string(text)))
	}
	s.memory.calls = len(calls)
	for space, lines := range s.memory.asked {
		for l := range lines {
			out[space] = append(out[space], l)
		}
	}
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	for space, lines := range s.storage.answers {
		for l := range lines {
			out[space] = append(out[space], s.memory.named(l))
		}
	}
	for _, id := range s.storage.driver.Snapshots() {
		out[s.spaceOf(id)] = append(out[s.spaceOf(id)], "stored snapshot "+s.memory.named(id))
	}
	for _, v := range s.storage.driver.Volumes() {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		space := s.spaceOf(v.ID)
		out[space] = append(out[space], "stored "+s.memory.named(string(text)))
	}
	return nil
}

// spaceOf returns the sequence that a text about a volume belongs to. A volume is named after a claim, or
// by a user.
func (s side) spaceOf(text string) string {
	if space := s.memory.of(text).space; space != "" {
		return space
	}
	return s.memory.space.FindString(text)
}
