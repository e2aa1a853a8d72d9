// Package e2e tests the verbs of kubectl and volplane, and the commands in documents, with the built programs as
// processes and with real mounts, as root.
package e2e
