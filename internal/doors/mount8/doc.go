// Package mount8 is the door of mount(8): it plays mount.volplane and umount.volplane, which mount(8) and umount(8)
// call for the type volplane.
//
// Life cycle: one call, which may be killed at any time and repeated. Its request is in a Pod.
package mount8
