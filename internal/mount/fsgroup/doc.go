// Package fsgroup gives the files of a volume to a group.
//
// Life cycle: Apply walks one filesystem from its top, holding every directory
// open, so that no symbolic link and no exchange of names leads it outside.
package fsgroup
