package hostile

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// behavior draws how each call ends. The seed, the method, the place, and the number of earlier calls of
// the method decide.
type behavior struct {
	seed uint64
	// calm is set when everything is to go well from now on.
	calm *atomic.Bool
	mu   *sync.Mutex
	// count is by method and place; said is what was disclosed of secrets.
	count map[string]int
	said  map[string]int
	// holds are the calls that go the same way again and again.
	holds map[string]*hold
}

// hold repeats the outcome of a call for the next calls, since a driver that returns an internal error
// seldom recovers immediately. The cause of the error ends during that time.
type hold struct {
	turn turn
	left int
}

func newMood(seed uint64) behavior {
	return behavior{
		seed: seed, calm: &atomic.Bool{}, mu: &sync.Mutex{}, count: map[string]int{}, said: map[string]int{},
		holds: map[string]*hold{},
	}
}

// turn is the outcome of one call.
type turn struct {
	// work says that its work is done, before it fails or succeeds.
	work      bool
	slow      time.Duration
	hang, die bool
	late      time.Duration
	err       error
	// says is what it answers when it answers OK, and does about it.
	says saying
}

// saying is how the answer of a driver that answers OK differs from what was requested, or from the truth.
type saying string

const (
	exactly saying = ""
	// less is that it has not grown the volume, and says so; nothing that it does not say what it has done; more that it
	// gives more than was requested, or says more than an answer may contain.
	less    saying = "less"
	nothing saying = "nothing"
	more    saying = "more"
	// other is that it answers with the id of another volume that is in use, having created the right one or not.
	other saying = "other"
)

// sayings are the ways in which a method may answer.
func sayings(method string) []saying {
	switch method {
	case "ControllerExpandVolume":
		return []saying{exactly, exactly, less, nothing, more}
	case "CreateVolume":
		return []saying{exactly, exactly, nothing, more, other}
	case "ControllerPublishVolume":
		return []saying{exactly, exactly, nothing, more}
	case "NodeExpandVolume":
		return []saying{exactly, nothing}
	}
	return []saying{exactly}
}

// String returns a short text for the diary.
func (t turn) String() string {
	text := fmt.Sprintf("work %v", t.work)
	switch {
	case t.hang:
		text += ", hang"
	case t.die:
		text += fmt.Sprint(", die, back after ", t.late)
	case t.err != nil:
		text += fmt.Sprint(", ", status.Code(t.err))
	}
	if t.says != exactly {
		text += fmt.Sprint(", says ", string(t.says))
	}
	if t.slow > 0 {
		text += fmt.Sprint(", slowly ", t.slow)
	}
	return text
}

func (m behavior) dice(method, place string) *rand.Rand {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count[method+place]++
	h := fnv.New64a()
	fmt.Fprint(h, method, place, m.count[method+place])
	return rand.New(rand.NewPCG(m.seed, h.Sum64()))
}

// scene is a call as a driver sees it.
type scene struct {
	method, place, id string
	// there says that the volume exists, hidden that the host does not show
	// whether it is staged.
	there, hidden bool
}

// unseen says that only the driver can see whether the call's work is done.
func (s scene) unseen() bool { return s.method == "NodeStageVolume" && s.hidden }

// draw returns the outcome of a call.
func (m behavior) draw(s scene) turn {
	dice := m.dice(s.method, s.place)
	if m.calm.Load() {
		return turn{work: true}
	}
	if t, ok := m.held(s); ok {
		return t
	}
	t := turn{work: dice.IntN(2) == 0}
	if dice.IntN(6) == 0 {
		t.slow = time.Duration(dice.IntN(200)) * time.Millisecond
	}
	switch n := dice.IntN(100); {
	case n < 55:
		t.work = true
	case n < 80:
		answers, again := s.believable(t.work), dice.IntN(3) == 0
		if s.unseen() && dice.IntN(2) == 0 {
			// Only the code shows what the driver has done.
			t.work, answers, again = true, []codes.Code{codes.Internal, codes.Unknown, codes.DataLoss}, true
		}
		t.err = status.Error(answers[dice.IntN(len(answers))], "")
		if again {
			m.hold(s, t, 2+dice.IntN(30))
		}
	case n < 90:
		t.die, t.late = true, time.Duration(dice.IntN(700))*time.Millisecond
	default:
		t.hang = true
	}
	all := sayings(s.method)
	t.says = all[dice.IntN(len(all))]
	return t
}

// hold repeats the outcome of a call for the next calls, since a driver that returns an internal error
// seldom recovers immediately. The cause of the error ends during that time.
func (m behavior) hold(s scene, t turn, times int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds[s.method+s.place+s.id] = &hold{t, times}
}

func (m behavior) held(s scene) (turn, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.holds[s.method+s.place+s.id]
	if h == nil || h.left == 0 || !slices.Contains(s.believable(h.turn.work), status.Code(h.turn.err)) {
		return turn{}, false
	}
	h.left--
	return h.turn, true
}

// believable returns the codes that a driver may return when it has, or has not, done the work. Codes are
// excluded that are false in a way that no CSI call could detect (docs/provisioning.md).
func (s scene) believable(work bool) []codes.Code {
	var out []codes.Code
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if !slices.Contains(s.lies(work), c) {
			out = append(out, c)
		}
	}
	return out
}

func (s scene) lies(work bool) []codes.Code {
	// CSI has these for requests that can never be met, requires OK for the arguments of an
	// existing volume, and has no other call that finds one by its name.
	request := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.OutOfRange, codes.ResourceExhausted}
	// These say that this call was not let in. Of an earlier one they say
	// nothing, so a driver may answer so when it has the volume already.
	access := []codes.Code{codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented}
	switch {
	case s.method == "CreateVolume" && s.there:
		return request
	case s.method == "CreateVolume" && work:
		return slices.Concat(request, access)
	case s.unseen() && work:
		// Nothing is at the staging path, and the codes say why it was not begun.
		// A driver that is short of resources may have begun.
		return slices.Concat(request[:3], access, []codes.Code{codes.FailedPrecondition})
	case s.method == "NodeUnstageVolume" && !work && s.hidden:
		// A driver that does not know the volume has not staged it, and nothing there says
		// otherwise.
		return []codes.Code{codes.NotFound}
	}
	return nil
}

// confess returns one of the secrets, or a part of it, in some encoding.
func (m behavior) confess(method string, secrets []string) string {
	if len(secrets) == 0 {
		return "no, and I do not say why"
	}
	dice := m.dice(method, "confession")
	secret := secrets[dice.IntN(len(secrets))]
	if dice.IntN(3) == 0 {
		secret = secret[:len(secret)/2]
	}
	all := spellings()
	s := all[dice.IntN(len(all))]
	spelled := s.spell(secret)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said[spelled] = s.long * windowBytes
	return "cannot log in with key=" + spelled + " here"
}

// windowBytes is the number of consecutive bytes of a secret that must never be visible. Fewer may be left
// where a text was cut.
const windowBytes = 12

// spelling is an encoding of a secret. long is the least number of characters for each byte.
type spelling struct {
	long  int
	spell func(string) string
}

func spellings() []spelling {
	each := func(format string) func(string) string {
		return func(s string) string {
			var b strings.Builder
			for i := range len(s) {
				fmt.Fprintf(&b, format, s[i])
			}
			return b.String()
		}
	}
	return []spelling{
		{1, func(s string) string { return s }},
		{1, url.QueryEscape},
		{2, func(s string) string { return hex.EncodeToString([]byte(s)) }},
		{2, func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
		{2, func(s string) string { return base64.URLEncoding.EncodeToString([]byte("admin:" + s)) }},
		{6, each(`\u%04x`)},
		{4, each(`\x%02x`)},
		{3, each(`%%%02X`)},
	}
}

// seen returns a part of a secret that the text contains, or "".
func (m behavior) seen(text string) string {
	for strings.Contains(text, `\\`) {
		text = strings.ReplaceAll(text, `\\`, `\`)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for spelled, window := range m.said {
		for i := 0; i+window <= len(spelled); i++ {
			if strings.Contains(text, spelled[i:i+window]) {
				return spelled
			}
		}
	}
	return ""
}
