// Package mount is what the kernel knows and does: the mount table, binds,
// filesystems on block devices, loop devices, sizes. The mount table, not an
// exit code or a note of ours, is the truth about what is mounted.
//
// What is mounted, unmounted, made or removed goes by descriptors: a path that
// somebody changes meanwhile leads nowhere else.
//
// Every function may be repeated: mounting what is mounted and unmounting what
// is not succeed. Nothing here deletes more than one empty directory.
package mount
