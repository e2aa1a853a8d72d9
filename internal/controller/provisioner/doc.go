// Package provisioner has drivers make volumes for claims and delete volumes
// that are released. Before it calls CreateVolume it writes to the claim what
// it will call it with, so that no crash loses a volume.
package provisioner
