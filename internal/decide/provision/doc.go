// Package provision decides whether a claim is ours to provision, what the
// driver is asked for, what the driver's answer is worth, what the volume
// object looks like, and when a volume is deleted.
package provision
