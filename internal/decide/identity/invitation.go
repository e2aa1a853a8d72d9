package identity

import (
	"regexp"
	"strings"
	"time"
)

// Paths of the API server of a standalone control plane.
const (
	// PathCertificate takes a certificate request (PKCS #10) of a node with an invitation or a
	// certificate, and returns a certificate; both are PEM.
	PathCertificate = "/volplane/certificate"
	// PathControlPlane takes a certificate request of a host with an invitation of a control plane, and returns Keys. No
	// certificate is issued: the request proves that the host has the key for which the invitation is used.
	PathControlPlane = "/volplane/control-plane"
	// PathInvitation takes an Invite and returns an Invited.
	PathInvitation = "/volplane/invitation"
	// PathRevocation takes a Revoke and returns a Revoked.
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
	// InvitedGroup is the group of clients with an invitation of a node.
	InvitedGroup = "volplane:invited"
	// InvitedPlanesGroup is the group of clients with an invitation of a control plane.
	InvitedPlanesGroup = "volplane:invited-control-planes"
)

// Kind says what a host is invited as.
type Kind string

const (
	// KindNode is the kind of an invitation with which a host gets the certificate of a node. It is "", because earlier
	// versions wrote no kind.
	KindNode Kind = ""
	// KindControlPlane is the kind of an invitation with which a host gets the keys of a control plane.
	KindControlPlane Kind = "control-plane"
)

// String returns the kind in words.
func (k Kind) String() string {
	if k == KindControlPlane {
		return "control plane"
	}
	return "node"
}

// Invited returns the prefix of the user name of a client with an invitation.
func (k Kind) Invited() string {
	if k == KindControlPlane {
		return "volplane:invited-control-plane:"
	}
	return "volplane:invited:"
}

// Requested returns the prefix of the name in a certificate request with an invitation. A request of one kind is
// refused where one of the other kind is expected.
func (k Kind) Requested() string {
	if k == KindControlPlane {
		return "volplane:control-plane:"
	}
	return UserPrefix
}

// Longest returns how long an invitation may be valid.
func (k Kind) Longest() time.Duration {
	if k == KindControlPlane {
		return time.Hour
	}
	return 30 * 24 * time.Hour
}

// Invite requests an invitation.
type Invite struct {
	Kind Kind   `json:"kind,omitempty"`
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
	// Lost says that the host of the node is given up: a control plane there does not work any more, either.
	Lost bool `json:"lost,omitempty"`
}

// Revoked is the response to a Revoke.
type Revoked struct {
	// ControlPlane says that there was an invitation of a control plane of the name, and Used that a host has used it,
	// which has the keys now.
	ControlPlane bool `json:"controlPlane,omitempty"`
	Used         bool `json:"used,omitempty"`
}

// Token identifies an invitation. A host sends it to get its first certificate, or the keys of a control plane.
type Token struct {
	Kind             Kind
	Node, ID, Secret string
}

// The first part of a token is one of the marks. A separator is between its parts; node names cannot have it.
const (
	markNode         = "volplane"
	markControlPlane = "volplane-control-plane"
	separator        = "~"
)

// String returns the token as text.
func (t Token) String() string {
	mark := markNode
	if t.Kind == KindControlPlane {
		mark = markControlPlane
	}
	return strings.Join([]string{mark, t.Node, t.ID, t.Secret}, separator)
}

// ParseToken parses a token; false means that the text is not a token.
func ParseToken(s string) (Token, bool) {
	const longest = 400
	if len(s) > longest {
		return Token{}, false
	}
	parts := strings.Split(s, separator)
	if len(parts) != 4 || parts[0] != markNode && parts[0] != markControlPlane {
		return Token{}, false
	}
	kind := KindNode
	if parts[0] == markControlPlane {
		kind = KindControlPlane
	}
	t := Token{Kind: kind, Node: parts[1], ID: parts[2], Secret: parts[3]}
	plain := regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	hex := regexp.MustCompile(`^[0-9a-f]{16,64}$`)
	return t, plain.MatchString(t.Node) && hex.MatchString(t.ID) && hex.MatchString(t.Secret)
}
