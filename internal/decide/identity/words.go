package identity

import (
	"regexp"
	"strings"
)

// Where the API server of a standalone control plane gives identities to nodes.
const (
	// PathCertificate takes a request for a certificate (PKCS #10) of a node that
	// is invited, or has a certificate, and answers with the certificate; both
	// are PEM.
	PathCertificate = "/volplane/certificate"
	// PathInvitation takes an Invite and answers with an Invited.
	PathInvitation = "/volplane/invitation"
	// PathRevocation takes a Revoke.
	PathRevocation = "/volplane/revocation"
)

const (
	// UserPrefix begins the user of a node.
	UserPrefix = "system:node:"
	// NodesGroup is the group of nodes.
	NodesGroup = "system:nodes"
	// InvitedPrefix begins the user who shows an invitation.
	InvitedPrefix = "volplane:invited:"
	// InvitedGroup is the group of those who show one.
	InvitedGroup = "volplane:invited"
)

// Invite asks for an invitation of a node.
type Invite struct {
	Node string `json:"node"`
	// Seconds is how long it can be used.
	Seconds int64 `json:"seconds"`
}

// Invited is the answer.
type Invited struct {
	Token string `json:"token"`
}

// Revoke takes back every certificate and every invitation that a node has.
type Revoke struct {
	Node string `json:"node"`
}

// Token is what a node shows to get its first certificate.
type Token struct{ Node, ID, Secret string }

// mark begins a token, separator is between its parts; no name of a node has it.
const mark, separator = "volplane", "~"

// String returns the token as it travels.
func (t Token) String() string {
	return strings.Join([]string{mark, t.Node, t.ID, t.Secret}, separator)
}

// ParseToken reads a token; what is none is somebody else's.
func ParseToken(s string) (Token, bool) {
	const longest = 400
	if len(s) > longest {
		return Token{}, false
	}
	parts := strings.Split(s, separator)
	if len(parts) != 4 || parts[0] != mark {
		return Token{}, false
	}
	t := Token{Node: parts[1], ID: parts[2], Secret: parts[3]}
	plain := regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	hex := regexp.MustCompile(`^[0-9a-f]{16,64}$`)
	return t, plain.MatchString(t.Node) && hex.MatchString(t.ID) && hex.MatchString(t.Secret)
}
