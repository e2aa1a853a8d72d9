package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Epoch numbers the periods between revocations of a node's credentials: credentials of an earlier
// epoch are revoked. This does not depend on clocks.
type Epoch int64

// Counts says whether credentials of an epoch are valid in the node's present epoch. Credentials of
// a later epoch are valid, too: they were issued before an older backup was restored.
func (present Epoch) Counts(given Epoch) bool { return given >= present }

// Next returns the epoch after a revocation. It is derived from the time, and so is later than epochs that a restored
// backup does not know.
func (present Epoch) Next(now time.Time) Epoch { return max(present+1, Epoch(now.Unix())) }

// Invitation is an invitation as the API server stores it, without the secret.
type Invitation struct {
	Kind Kind   `json:"kind,omitempty"`
	Node string `json:"node"`
	// Hash is the hash of the secret.
	Hash    string    `json:"hash"`
	Expires time.Time `json:"expires"`
	Epoch   Epoch     `json:"epoch"`
	// Key is the hash of the public key for which the invitation was used, or "".
	Key string `json:"key,omitempty"`
	// Seal proves that a control plane has written an invitation of a control plane: otherwise users who may write Secrets
	// could invite themselves. It is "" for a node.
	Seal string `json:"seal,omitempty"`
}

// Sealed returns what the seal of an invitation is of.
func (i Invitation) Sealed(id string) string {
	return strings.Join([]string{
		string(i.Kind), id, i.Node, i.Hash, i.Expires.UTC().Format(time.RFC3339Nano), strconv.FormatInt(int64(i.Epoch), 10),
		i.Key,
	}, "\n")
}

// Hash returns the hash of a secret or public key, for storing it.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Open returns an error if the invitation has expired or was revoked.
func (i Invitation) Open(present Epoch, now time.Time) error {
	switch {
	case !now.Before(i.Expires):
		return fmt.Errorf("the invitation of %s %s has expired", i.Kind, i.Node)
	case !present.Counts(i.Epoch):
		return fmt.Errorf("the invitation of %s %s was revoked", i.Kind, i.Node)
	}
	return nil
}

// Admit returns an error if a token does not belong to the invitation, or the invitation is not open.
func (i Invitation) Admit(t Token, present Epoch, now time.Time) error {
	if i.Kind != t.Kind || i.Node != t.Node ||
		subtle.ConstantTimeCompare([]byte(i.Hash), []byte(Hash([]byte(t.Secret)))) != 1 {
		return errors.New("the invitation does not exist")
	}
	return i.Open(present, now)
}

// Use returns the invitation after its use for a public key. It can be used for one key only, but
// repeatedly: the first response may have been lost, and only the host that has the key can request it again.
func (i Invitation) Use(kind Kind, key string) (Invitation, error) {
	switch {
	case i.Kind != kind:
		return i, fmt.Errorf("the invitation is for %s %s, not for a %s", i.Kind, i.Node, kind)
	case i.Key != "" && i.Key != key:
		return i, fmt.Errorf("the invitation of %s %s has already been used", i.Kind, i.Node)
	}
	i.Key = key
	return i, nil
}

// RenewalPause is the longest pause between two checks whether a certificate is due: hosts sleep, and clocks are
// changed.
const RenewalPause = time.Hour

// Renew returns how long to wait until a certificate is renewed: after two thirds of its life, and at most
// RenewalPause. A certificate that was obtained in the future is due: the clock was wrong, so its age is unknown.
func Renew(obtained, end, now time.Time) (wait time.Duration, due bool) {
	at := obtained.Add(end.Sub(obtained) * 2 / 3)
	if now.Before(obtained) || !now.Before(at) {
		return 0, true
	}
	return min(at.Sub(now), RenewalPause), false
}

// The controllers of a host call the node-local drivers of its node. They act under an identity of their own, which
// only the node's agent may impersonate, because a node's identity must not change claims.
const (
	// HostPrefix and the node's name are the user name of a host's controllers.
	HostPrefix = "system:volplane:host:"
	// HostsGroup is the group of all hosts' controllers.
	HostsGroup = "system:volplane:hosts"
)

// HostOf returns the node of a user that is the controllers of a host.
func HostOf(user string) (node string, ok bool) {
	node, ok = strings.CutPrefix(user, HostPrefix)
	return node, ok && node != ""
}

// The names of intent logs, which have at most maxIntents bytes: they are values of a label.
const (
	hostIntents   = "volplane-intents-node-"
	driverIntents = "volplane-intents-driver-"
	maxIntents    = 63
)

// HostIntents returns the name of the intent log of a host's controllers. Each node has its own.
func HostIntents(node string) string { return logName(hostIntents, node) }

// DriverIntents returns the name of the intent log of a driver. Of all processes that may call the driver's controller,
// only the holder of the driver's leases writes it. Each driver has its own log.
func DriverIntents(driver string) string { return logName(driverIntents, driver) }

// IsOfDriver says whether an intent log of this name is that of a driver.
func IsOfDriver(log string) bool { return strings.HasPrefix(log, driverIntents) }

// logName returns a name for an object. A hash distinguishes names that are too long or contain upper case.
func logName(prefix, of string) string {
	name := prefix + strings.ToLower(of)
	if len(name) <= maxIntents && strings.HasSuffix(name, of) {
		return name
	}
	hash := Hash([]byte(of))[:12]
	return fmt.Sprintf("%s.%s", strings.TrimRight(name[:min(len(name), maxIntents-len(hash)-1)], "-."), hash)
}
