// Package provisioner calls drivers to create volumes for claims and to delete released volumes.
// Before it calls CreateVolume, it writes the arguments to its intent log, so that no crash loses a
// volume.
package provisioner
