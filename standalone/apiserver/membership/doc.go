// Package membership issues and revokes the identities of nodes: invitations, and
// certificates for keys that nodes create themselves. Invitations are stored in
// Secrets and revocations in a ConfigMap, so that they survive restarts and are part
// of backups.
package membership
