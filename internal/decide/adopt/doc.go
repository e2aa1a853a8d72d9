// Package adopt decides what manifests for a driver keep from an existing installation in a cluster.
package adopt
