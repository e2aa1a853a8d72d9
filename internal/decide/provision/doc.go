// Package provision decides whether a claim gets a new volume, which arguments CreateVolume gets,
// what follows from the driver's answer, what the volume object contains, and when a volume is
// deleted.
package provision
