// Package local is the bundled CSI driver: filesystems and raw block volumes
// of a hard size limit, on sparse files of one host. It is a real driver behind
// a real socket, and an example for authors of others.
//
// A pool is a directory:
//
//	pool.json            the pool's id; nodes with the same id reach the same volumes
//	lock                 taken for every change of what the pool holds
//	nodes/ID             one file for each node that a driver has served
//	volumes/ID/          volume.json and disk.img
//	snapshots/ID/        snapshot.json and disk.img
//	volumes/.new-*       what is being made; a rename makes it a volume
//
// Several drivers, one for each node agent on the host, share a pool. A volume
// either exists whole or not at all, whenever a driver is killed: it is made
// under another name, synced and renamed. Its id follows from its name, so that
// a repeated CreateVolume finds what the first one made. What is mounted is
// asked of the kernel, never remembered.
package local
