// Package identity obtains and keeps the identity of a node: with an invitation, it requests a certificate for a key
// that it generates and never reveals, and renews it, with a new key, long before it expires. Key and certificate are
// in one file, so they always match.
package identity
