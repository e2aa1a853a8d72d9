package identity_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/decide/identity"
)

func TestTokens(t *testing.T) {
	id, secret := strings.Repeat("0a", 8), strings.Repeat("f9", 32)
	for in, want := range map[string]bool{
		"volplane~n1~" + id + "~" + secret:                               true,
		"volplane~n1.lan~" + id + "~" + secret:                           true,
		"volplane~" + strings.Repeat("n", 253) + "~" + id + "~" + secret: true,
		"volplane~" + strings.Repeat("n", 254) + "~" + id + "~" + secret: false,
		"volplane~n1~" + id:                              false,
		"volplane~n1~../x" + id + "~" + secret:           false,
		"volplane~n1~" + id + "~":                        false,
		"volplane~N1~" + id + "~" + secret:               false,
		"volplane~-~" + id + "~" + secret:                false,
		"volplane-control-plane~n1~" + id + "~" + secret: true,
		"volplane-control~n1~" + id + "~" + secret:       false,
		"other~n1~" + id + "~" + secret:                  false,
		"volplane~n1~" + id + "~" + secret + "\n":        false,
		"eyJh.bGci.Oi":                                   false,
		"":                                               false,
	} {
		got, ok := identity.ParseToken(in)
		if ok != want || ok && got.String() != in {
			t.Errorf("%.40q: %v %v, want %v", in, got, ok, want)
		}
		if plane := strings.HasPrefix(in, "volplane-control-plane~"); ok && (got.Kind == identity.KindControlPlane) != plane {
			t.Errorf("%.40q is of a %s", in, got.Kind)
		}
	}
}

// TestInvitationCounts: whatever happens to invitations and certificates of a
// node in whatever order, what counts is what was given after the last time that
// all was taken back, not too late, for what it is of, and to one key only.
func TestInvitationCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, present := time.Unix(1_000_000, 0), identity.Epoch(0)
		kinds := []identity.Kind{identity.KindNode, identity.KindControlPlane}
		var token identity.Token
		var kept *identity.Invitation
		var revoked bool
		var user string
		t.Repeat(map[string]func(*rapid.T){
			"invite": func(t *rapid.T) {
				token = identity.Token{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Node: "n", ID: "i", Secret: "s"}
				kept = &identity.Invitation{
					Kind: token.Kind, Node: "n", Hash: identity.Hash([]byte("s")), Expires: now.Add(time.Hour), Epoch: present,
				}
				revoked, user = false, ""
			},
			// A clock may also be set back.
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(-40, 60).Draw(t, "minutes")) * time.Minute)
			},
			"revoke": func(t *rapid.T) { present, revoked = present.Next(now), true },
			"use": func(t *rapid.T) {
				if kept == nil {
					return
				}
				shown := token
				if rapid.Bool().Draw(t, "wrong") {
					shown = rapid.SampledFrom([]identity.Token{
						{Kind: token.Kind, Node: "m", ID: "i", Secret: "s"},
						{Kind: token.Kind, Node: "n", ID: "i", Secret: "x"},
						{Kind: token.Kind, Node: "n", ID: "i"},
						{Kind: kinds[0], Node: "n", ID: "i", Secret: "s"},
						{Kind: kinds[1], Node: "n", ID: "i", Secret: "s"},
					}).Draw(t, "token")
				}
				of := rapid.SampledFrom(kinds).Draw(t, "used as")
				key := rapid.SampledFrom([]string{"k1", "k2"}).Draw(t, "key")
				err := kept.Admit(shown, present, now)
				next := *kept
				if err == nil {
					next, err = kept.Use(of, key)
				}
				want := shown == token && of == token.Kind && !revoked && now.Before(kept.Expires) &&
					(user == "" || user == key)
				if (err == nil) != want {
					t.Fatalf("%+v by %s: %v; want it to count: %v", shown, key, err, want)
				}
				if err == nil {
					kept, user = &next, key
				}
			},
		})
	})
}

// TestEpochAfterARestore: what was given before a backup of an earlier time was
// restored counts, until it is taken back.
func TestEpochAfterARestore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(rapid.Int64Range(1, 1<<40).Draw(t, "now"), 0)
		var backedUp identity.Epoch
		given := backedUp
		for range rapid.IntRange(1, 5).Draw(t, "revocations") {
			given = given.Next(now)
			now = now.Add(time.Second)
		}
		if !backedUp.Counts(given) {
			t.Error("a restore locks a node out")
		}
		if backedUp.Next(now.Add(5 * time.Second)).Counts(given) {
			t.Error("after a restore a certificate cannot be taken back")
		}
	})
}

func TestRenew(t *testing.T) {
	day := 24 * time.Hour
	begin := time.Unix(0, 0).Add(1000 * day)
	for name, c := range map[string]struct {
		now  time.Time
		wait time.Duration
		due  bool
	}{
		"new":                       {begin, time.Hour, false},
		"a little before":           {begin.Add(4*day - time.Minute), time.Minute, false},
		"two thirds are over":       {begin.Add(4 * day), 0, true},
		"over":                      {begin.Add(9 * day), 0, true},
		"obtained in the future":    {begin.Add(-time.Second), 0, true},
		"obtained decades from now": {begin.Add(-900 * day), 0, true},
	} {
		wait, due := identity.Renew(begin, begin.Add(6*day), c.now)
		if wait != c.wait || due != c.due {
			t.Errorf("%s: %v %v, want %v %v", name, wait, due, c.wait, c.due)
		}
	}
}
