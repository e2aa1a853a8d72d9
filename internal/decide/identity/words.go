package identity

import (
	"regexp"
	"strings"
)

// Paths of the API server of a standalone control plane.
const (
	// PathCertificate takes a certificate request (PKCS #10) of a node with an invitation or a
	// certificate, and returns a certificate; both are PEM.
	PathCertificate = "/volplane/certificate"
	// PathInvitation takes an Invite and returns an Invited.
	PathInvitation = "/volplane/invitation"
	// PathRevocation takes a Revoke.
	PathRevocation = "/volplane/revocation"
)

const (
	// UserPrefix is the prefix of the user name of a node.
	UserPrefix = "system:node:"
	// NodesGroup is the group of nodes.
	NodesGroup = "system:nodes"
	// PlanesGroup is the group of those node agents that are in the processes of control planes. Only they may say of
	// their Nodes that a control plane runs there.
	PlanesGroup = "system:volplane:planes"
	// ServerName is the name for which the certificate of every control plane is valid, wherever it is.
	ServerName = "volplane"
	// InvitedPrefix is the prefix of the user name of a client with an invitation.
	InvitedPrefix = "volplane:invited:"
	// InvitedGroup is the group of such clients.
	InvitedGroup = "volplane:invited"
)

// Invite requests an invitation for a node.
type Invite struct {
	Node string `json:"node"`
	// Seconds is how long the invitation is valid.
	Seconds int64 `json:"seconds"`
}

// Invited is the response to an Invite.
type Invited struct {
	Token string `json:"token"`
}

// Revoke requests that all certificates and invitations of a node are revoked.
type Revoke struct {
	Node string `json:"node"`
}

// Token identifies an invitation. A node sends it to get its first certificate.
type Token struct{ Node, ID, Secret string }

// mark is the first part of a token, and separator is between its parts; node names cannot have it.
const mark, separator = "volplane", "~"

// String returns the token as text.
func (t Token) String() string {
	return strings.Join([]string{mark, t.Node, t.ID, t.Secret}, separator)
}

// ParseToken parses a token; false means that the text is not a token.
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
