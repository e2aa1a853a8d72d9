// Package local is the bundled CSI driver. Its volumes are sparse files of one host: filesystems
// and raw block volumes with a hard size limit. It is a real driver behind a real socket, and an
// example for authors of others.
//
// A pool is a directory:
//
//	pool.json            the pool's id; nodes with the same id reach the same volumes
//	lock                 taken for every change of what the pool holds
//	nodes/HASH           one file for each node that was served, locked while it is
//	volumes/ID/          volume.json, disk.img, and node while it is published to one
//	snapshots/ID/        volume.json and disk.img
//	groups/ID/           group.json, and for each snapshot of the group a directory like those of snapshots
//	volumes/.new-*       what is being created or deleted; a rename makes it a volume
//
// Several drivers, one for each node agent on the host, share a pool; two for one node are refused. A volume exists
// wholly or not at all, whenever a driver is killed: it is created under another name, synced and renamed. Its id
// follows from its name, so a repeated CreateVolume finds the first one's result. Its size is that of its image. Mounts
// are read from the kernel, never stored.
//
// One operation at a time locks a volume, by a lock of its image that all drivers respect: an image
// never has two loop devices, and no volume is mounted, expanded or deleted while it is copied.
// Only deletion and the fence, which says to which node a volume is published, also lock the pool.
//
// A filesystem is only made on a volume that contains nothing but zeros. A marker file exists
// until it is finished; a driver that finds the file later starts over.
package local
