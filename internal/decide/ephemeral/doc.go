// Package ephemeral decides about generic ephemeral volumes: claims that are created for one Pod
// from a template in it, and deleted with it.
package ephemeral
