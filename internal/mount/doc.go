// Package mount does everything that concerns mounts in the kernel: the mount table, bind mounts,
// filesystems on block devices, loop devices, sizes. Whether something is mounted is read from the
// mount table, never derived from an exit code or a record.
//
// All changes use file descriptors, so that they affect the checked place even if the path changes
// in the meantime.
//
// Every function may be repeated: mounting what is mounted, and unmounting what is not, succeed. No
// function deletes more than one empty directory.
package mount
