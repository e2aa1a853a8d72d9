package differential

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
	"volplane.dev/volplane/test/internal/upstream"
)

// ParameterSpace is a parameter of every class that shows the driver to which sequence a volume belongs.
const ParameterSpace = "space"

// Storage is a side's driver, which fails as the sequences want it to. A side that only binds has a storage
// without a driver.
type Storage struct {
	Driver *csitest.Driver

	mu     sync.Mutex
	faults map[string]*Fault
	// failed are the calls that were answered with an error, by method and volume.
	failed map[string]bool
	spaces map[string]string
	// answers are the errors so far, one line each, by sequence.
	answers map[string]map[string]bool
	// Placed says where a volume is; nil is everywhere.
	Placed func(r *csipb.CreateVolumeRequest) []*csipb.Topology
	// silent says that calls get no answer, and whether they do their work.
	silent restart
	// moods are what the driver reports about snapshots, by sequence.
	moods map[string]Mood
}

// reported is the size that a driver returns for a volume.
type reported int

const (
	right reported = iota
	// Half of the right size.
	Half
	// Nothing about the size.
	Nothing
)

func (r reported) String() string { return []string{"the right size", "half the size", "no size"}[r] }

// of returns what is reported about a volume of that size.
func (r reported) of(bytes int64) int64 { return []int64{bytes, bytes / 2, 0}[r] }

// Fault says how calls of a method fail in a sequence.
type Fault struct {
	Code codes.Code
	// Reported is the kind of size that the driver reports, without an error, unless it is
	// right.
	Reported reported
	// Times is how often that happens to each volume; 0 means always. After makes the driver do its work nevertheless.
	Times int
	After bool
	seen  map[string]int
}

func newStorage() *Storage {
	return &Storage{
		faults: map[string]*Fault{}, failed: map[string]bool{}, spaces: map[string]string{},
		answers: map[string]map[string]bool{}, moods: map[string]Mood{},
	}
}

// Start starts the driver.
func (s *Storage) Start(t *testing.T, change func(*csitest.Config)) *csi.Set {
	t.Helper()
	driver, drivers := upstream.StartDriver(t, change,
		func(c *csitest.Config) { c.Controller.Snapshot, c.Snapshots = true, []string{Shot} })
	s.Driver = driver
	driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action {
		r := req.(*csipb.CreateVolumeRequest)
		s.mu.Lock()
		s.spaces["id-"+r.GetName()] = r.GetParameters()[ParameterSpace]
		s.mu.Unlock()
		action, size := s.action(r.GetParameters()[ParameterSpace], "CreateVolume", r.GetName())
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
func (s *Storage) action(space, method, volume string) (csitest.Action, reported) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, call := s.faults[space+" "+method], method+" "+volume
	fails := f != nil && (f.Times == 0 || f.seen[volume] < f.Times)
	// When a failed call is repeated depends on each side's pauses, so only calls that both sides make now are kept back.
	if space != "" && s.silent.silences() && !(fails && s.failed[call]) {
		if !strings.HasPrefix(method, "Controller") {
			Note(s.answers, space, Unanswered+method+" of "+volume)
		}
		return csitest.Action{After: s.silent == afterwards, Hang: true}, right
	}
	if !fails {
		return csitest.Action{}, right
	}
	f.seen[volume]++
	if f.Reported != right {
		Note(s.answers, space, "answered "+method+" of "+volume+" with "+f.Reported.String())
		return csitest.Action{}, f.Reported
	}
	s.failed[call] = true
	Note(s.answers, space, "answered "+method+" of "+volume+" with "+f.Code.String())
	return csitest.Action{After: f.After, Err: status.Error(f.Code, "as the test wants")}, right
}

// keptBack records a call about a volume and a node without an answer, and whether its work is done.
func (s *Storage) keptBack(method, volume, node string, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	Note(s.answers, newMemory().space.FindString(volume),
		fmt.Sprintf("%s%s of %s at %s, done: %v", Unanswered, method, volume, node, done))
}

// answer returns the driver's answer about a volume that it has created.
func (s *Storage) answer(r *csipb.CreateVolumeRequest, size reported) *csipb.CreateVolumeResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	var placed []*csipb.Topology
	if s.Placed != nil {
		placed = s.Placed(r)
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: "id-" + r.GetName(), CapacityBytes: size.of(r.GetCapacityRange().GetRequiredBytes()),
		ContentSource: r.GetVolumeContentSource(),
		VolumeContext: map[string]string{"name": r.GetName()}, AccessibleTopology: placed,
	}}
}

// Note adds a line to those of a sequence.
func Note(all map[string]map[string]bool, space, line string) {
	if all[space] == nil {
		all[space] = map[string]bool{}
	}
	all[space][line] = true
}

// Fail makes calls fail from now on.
func (s *Storage) Fail(space, method string, f Fault) {
	f.seen = map[string]int{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[space+" "+method] = &f
}

// keepSilent has calls get no answer, or ends that.
func (s *Storage) keepSilent(how restart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = how
}

// heal ends the faults of a sequence, or of all sequences when space is "".
func (s *Storage) heal(space string) {
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
func (s *Storage) calls() map[string]int {
	out := map[string]int{}
	for _, m := range s.Driver.Methods() {
		out[m]++
	}
	return out
}

// memory remembers deleted claims and the calls of the driver.
type memory struct {
	seeing sync.Mutex
	Claims map[types.UID]ClaimName
	// calls is the number of driver calls included in asked: the lines by sequence, each once.
	calls int
	asked map[string]map[string]bool
	// asides are lines that are not compared and stay until the end, by sequence.
	asides sync.Map
	// uid finds a UID in a text, space the name of a sequence, member that of a
	// claim like those of a StatefulSet.
	uid, space, member *regexp.Regexp
	// Naming returns the name of the volume that is created for a claim, if it is not the usual one.
	Naming func(types.UID) string
}

// ClaimName is the name of a claim in the namespace of a sequence.
type ClaimName struct{ Space, Name string }

// Keep keeps a line that is not compared for the rest of a sequence.
func (m *memory) Keep(space, line string) { m.asides.Store([2]string{space, Aside + line}, nil) }

// addAsides adds the kept lines of the present sequences.
func (m *memory) addAsides(out State) {
	m.asides.Range(func(k, _ any) bool {
		if key := k.([2]string); out[key[0]] != nil {
			out[key[0]] = append(out[key[0]], key[1])
		}
		return true
	})
}

func newMemory() *memory {
	return &memory{
		Claims: map[types.UID]ClaimName{}, asked: map[string]map[string]bool{},
		uid: regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), space: regexp.MustCompile(`g[0-9]+-s[0-9]+`),
		member: regexp.MustCompile(`\b(c[0-9]+)-web-[0-9]+\b`),
	}
}

// of returns the claim whose UID is the first one in a text.
func (m *memory) of(text string) ClaimName {
	return m.Claims[types.UID(m.uid.FindString(m.usual(text)))]
}

// Volume returns the name of the volume that is created for a claim.
func (m *memory) Volume(uid types.UID) string {
	if m.Naming != nil {
		return m.Naming(uid)
	}
	return "pvc-" + string(uid)
}

// usual gives the volumes of claims their usual names.
func (m *memory) usual(text string) string {
	if m.Naming != nil {
		for uid := range m.Claims {
			text = strings.ReplaceAll(text, m.Naming(uid), "pvc-"+string(uid))
		}
	}
	return text
}

// Named replaces the UIDs of claims by their names.
func (m *memory) Named(text string) string {
	return m.uid.ReplaceAllStringFunc(m.usual(text), func(uid string) string {
		if c, ok := m.Claims[types.UID(uid)]; ok {
			return c.Name
		}
		return uid
	})
}

// short replaces the UIDs of all claims by the same word.
func (m *memory) short(text string) string { return m.member.ReplaceAllString(text, "$1") }

// Stored adds a line for each volume of the driver and for each call.
func (s Side) Stored(out State) error {
	if s.Storage.Driver == nil {
		return nil
	}
	calls := s.Storage.Driver.Calls()
	for _, c := range calls[s.Memory.calls:] {
		if !slices.Contains([]string{
			"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "CreateSnapshot",
			"DeleteSnapshot", "ListSnapshots", MethodModify,
		}, c.Method) {
			continue
		}
		text, err := json.Marshal(c.Request)
		if err != nil {
			return err
		}
		space := s.SpaceOf(string(text))
		Note(s.Memory.asked, space, "asked "+c.Method+" "+s.Memory.Named(string(text)))
	}
	s.Memory.calls = len(calls)
	for space, lines := range s.Memory.asked {
		for l := range lines {
			out[space] = append(out[space], l)
		}
	}
	s.Storage.mu.Lock()
	defer s.Storage.mu.Unlock()
	for space, lines := range s.Storage.answers {
		for l := range lines {
			out[space] = append(out[space], s.Memory.Named(l))
		}
	}
	for _, id := range s.Storage.Driver.Snapshots() {
		out[s.SpaceOf(id)] = append(out[s.SpaceOf(id)], "stored snapshot "+s.Memory.Named(id))
	}
	for _, v := range s.Storage.Driver.Volumes() {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		space := s.SpaceOf(v.ID)
		out[space] = append(out[space], "stored "+s.Memory.Named(string(text)))
	}
	return nil
}

// SpaceOf returns the sequence that a text about a volume belongs to. A volume is named after a claim, or
// by a user.
func (s Side) SpaceOf(text string) string {
	if space := s.Memory.of(text).Space; space != "" {
		return space
	}
	return s.Memory.space.FindString(text)
}
