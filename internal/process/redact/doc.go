// Package redact removes secrets from what a driver says, before it is logged or shown.
//
// A driver may quote a secret as it is, in JSON, in a URL, in base64 or hex, in the trace of a
// shell, truncated, and also in a later call that did not carry the secret. So Secrets keeps hashes
// of all secrets that drivers have received, and Hide decodes every encoding and looks for parts of
// secrets in the results.
//
// A driver that wants to reveal a secret can always do so in an encoding of its own; this is not a
// defence against that.
package redact
