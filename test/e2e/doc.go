// Package e2e tests the built programs as processes with real mounts, as root.
package e2e
