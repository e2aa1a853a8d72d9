// Package uses finds the PersistentVolumes of a Pod's volumes, and the paths on the host at which they
// are mounted.
//
// Life cycle: a Finder has no state; its answers are as old as the caches that it reads.
package uses
