// Package volumeusers decides who still uses a volume that a container engine mounts: the engine counts
// its containers, forgets some, and the kernel knows better.
package volumeusers
