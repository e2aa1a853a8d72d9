// Package local is the bundled CSI driver: filesystems and raw block volumes
// of a hard size limit, on sparse files of one host. It is a real driver behind
// a real socket, and an example for authors of others.
//
// A pool is a directory:
//
//	pool.json            the pool's id; nodes with the same id reach the same volumes
//	lock                 taken for every change of what the pool holds
//	nodes/HASH           one file for each node that was served, locked while it is
//	volumes/ID/          volume.json, disk.img, and node while it is published to one
//	snapshots/ID/        volume.json and disk.img
//	volumes/.new-*       what is being made or deleted; a rename makes it a volume
//
// Several drivers, one for each node agent on the host, share a pool; two for
// one node are refused. A volume either exists whole or not at all, whenever a
// driver is killed: it is made under another name, synced and renamed. Its id
// follows from its name, so that a repeated CreateVolume finds what the first
// one made. Its size is that of its image. What is mounted is asked of the
// kernel, never remembered.
//
// One operation at a time holds a volume, by a lock of its image that all
// drivers see: no second loop device appears over an image, no volume is
// mounted, grown or deleted while it is copied. Only the fence, to which node a
// volume is published, and a deletion also take the lock of the pool.
//
// A filesystem is made on a volume of nothing but zeros; a file says so
// meanwhile, and whoever finds it later begins again.
package local
