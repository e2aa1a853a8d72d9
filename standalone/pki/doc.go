// Package pki is the control plane's own certificate authority. Only the authority's
// key and the key that signs service account tokens are stored, in a directory that
// only their owner may enter. Other identities are issued in memory when they are
// needed, so that no key of a role is stored on disk.
package pki
