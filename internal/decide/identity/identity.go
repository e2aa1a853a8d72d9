package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Epoch counts how often what a node shows was taken back: whatever was given
// before the last time does not count any more. It does not depend on clocks.
type Epoch int64

// Counts says whether what was given in an epoch still counts in the node's
// present one. What is newer than the present one was given before a backup of
// an earlier time was restored.
func (present Epoch) Counts(given Epoch) bool { return given >= present }

// Next is the epoch that begins when all that was given is taken back. It is
// the time's, so that it also is later than those that a restored backup of an
// earlier time knows nothing of.
func (present Epoch) Next(now time.Time) Epoch { return max(present+1, Epoch(now.Unix())) }

// Invitation is what the API server keeps of one. The secret is not in it.
type Invitation struct {
	Node string `json:"node"`
	// Hash is of the secret.
	Hash    string    `json:"hash"`
	Expires time.Time `json:"expires"`
	Epoch   Epoch     `json:"epoch"`
	// Key is the hash of the public key that it was used for.
	Key string `json:"key,omitempty"`
}

// Hash returns what is kept of a secret or a public key.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Open says whether the invitation can be used: it has not expired and was not
// taken back.
func (i Invitation) Open(present Epoch, now time.Time) error {
	switch {
	case !now.Before(i.Expires):
		return fmt.Errorf("the invitation of node %s has expired", i.Node)
	case !present.Counts(i.Epoch):
		return fmt.Errorf("the invitation of node %s was taken back", i.Node)
	}
	return nil
}

// Admit says whether who shows a token is invited.
func (i Invitation) Admit(t Token, present Epoch, now time.Time) error {
	if i.Node != t.Node || subtle.ConstantTimeCompare([]byte(i.Hash), []byte(Hash([]byte(t.Secret)))) != 1 {
		return errors.New("there is no such invitation")
	}
	return i.Open(present, now)
}

// Use returns the invitation after its use for a public key. It can be used for
// one key only, and for that one again: the first answer may have been lost, and
// the certificate is of no use without the key.
func (i Invitation) Use(key string) (Invitation, error) {
	if i.Key != "" && i.Key != key {
		return i, fmt.Errorf("the invitation of node %s was used already", i.Node)
	}
	i.Key = key
	return i, nil
}

// Pauses of who looks after a certificate.
const (
	shortest = time.Minute
	longest  = time.Hour
)

// Renew says how long to wait until a certificate that was obtained at a time
// and ends at another is renewed: two thirds of its life, but it is looked at
// every hour, because hosts sleep and clocks are set. One that was obtained in
// the future was obtained by a wrong clock, so nobody knows how old it is.
func Renew(obtained, end, now time.Time) (wait time.Duration, due bool) {
	at := obtained.Add(end.Sub(obtained) * 2 / 3)
	if now.Before(obtained) || !now.Before(at) {
		return 0, true
	}
	return min(at.Sub(now), longest), false
}

// Again is the pause after so many failed attempts, and also after one that
// went well: where a clock is wrong each certificate seems old.
func Again(failed int) time.Duration {
	return min(shortest<<min(failed, 10), longest)
}
