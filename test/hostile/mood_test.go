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

// mood draws how calls go: by the seed, the method, the place, and how many
// there were of it.
type mood struct {
	seed uint64
	// calm is set when everything is to go well from now on.
	calm *atomic.Bool
	mu   *sync.Mutex
	// count is by method and place; said is what was told of secrets.
	count map[string]int
	said  map[string]int
}

func newMood(seed uint64) mood {
	return mood{seed: seed, calm: &atomic.Bool{}, mu: &sync.Mutex{}, count: map[string]int{}, said: map[string]int{}}
}

// turn is how one call goes.
type turn struct {
	// work says that its work is done, before it goes wrong or well.
	work      bool
	slow      time.Duration
	hang, die bool
	late      time.Duration
	err       error
}

// String is short, for the diary.
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
	if t.slow > 0 {
		text += fmt.Sprint(", slowly ", t.slow)
	}
	return text
}

func (m mood) dice(method, place string) *rand.Rand {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count[method+place]++
	h := fnv.New64a()
	fmt.Fprint(h, method, place, m.count[method+place])
	return rand.New(rand.NewPCG(m.seed, h.Sum64()))
}

// draw returns how a call goes; exists says whether the volume does.
func (m mood) draw(method, place string, exists bool) turn {
	dice := m.dice(method, place)
	if m.calm.Load() {
		return turn{work: true}
	}
	t := turn{work: dice.IntN(2) == 0}
	if dice.IntN(6) == 0 {
		t.slow = time.Duration(dice.IntN(200)) * time.Millisecond
	}
	switch n := dice.IntN(100); {
	case n < 55:
		t.work = true
	case n < 80:
		answers := believable(method, t.work, exists)
		t.err = status.Error(answers[dice.IntN(len(answers))], "")
	case n < 90:
		t.die, t.late = true, time.Duration(dice.IntN(700))*time.Millisecond
	default:
		t.hang = true
	}
	return t
}

// believable returns the codes that a driver may answer when it has done the
// work or not. It may not say of a volume that is there, or was just made, that
// its request can never be met, nor of one that is there that it is not: CSI
// leaves a caller nothing to know better by (docs/provisioning.md).
func believable(method string, work, exists bool) []codes.Code {
	var never []codes.Code
	switch {
	case method == "CreateVolume" && (work || exists):
		never = []codes.Code{
			codes.InvalidArgument, codes.NotFound, codes.OutOfRange, codes.ResourceExhausted, codes.AlreadyExists,
			codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented,
		}
	case !work:
		never = []codes.Code{codes.NotFound}
	}
	var out []codes.Code
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if !slices.Contains(never, c) {
			out = append(out, c)
		}
	}
	return out
}

// confess tells a secret in a spelling, or a part of it.
func (m mood) confess(method, secret string) string {
	if secret == "" {
		return "no, and I do not say why"
	}
	dice := m.dice(method, "confession")
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

// windowBytes is how many bytes of a secret in a row must never be seen. Fewer
// may be left where a text was cut.
const windowBytes = 12

// spelling is how a program shows a secret, long how many characters each byte
// takes at least.
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

// seen returns a part of a secret that the text shows, or "".
func (m mood) seen(text string) string {
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
