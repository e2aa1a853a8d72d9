// Package takeover decides what manifests for a driver keep of what a cluster has of it.
package takeover
