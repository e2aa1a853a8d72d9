// Package identity is how a node gets its identity and keeps it: with an
// invitation it asks for a certificate for a key that it makes itself and never
// gives away, and renews it, for another key, long before it ends. Key and
// certificate are one file, so that whoever reads it finds what belongs together.
package identity
