// Package fsgroup changes the group of a volume's files.
//
// Life cycle: Apply walks one filesystem from its root. It uses descriptors of open directories, so
// that no symbolic link and no renamed directory can lead it outside.
package fsgroup
