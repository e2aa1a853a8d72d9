// Package membership is who the API server takes for a node: invitations, the
// certificates that nodes get for keys of their own, and that both are taken
// back. Invitations are Secrets, what was taken back is a ConfigMap; both are in
// the API, so that they outlive restarts and are in backups.
package membership
