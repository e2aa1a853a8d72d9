// Package backup saves the objects and keys of a control plane to one file, and
// restores a data directory from such a file.
//
// The file is a compressed tar archive: files of the data directory, a snapshot of
// etcd, and a manifest with the checksums of all of them at the end. It contains
// every Secret and all keys, so only its owner may read it.
//
// Life cycle: a backup is written under a temporary name and renamed when it is complete and synced. A restore first
// creates everything in a separate directory, and then exchanges whole directories and keeps the replaced ones. After a
// crash at any moment, the next backup or restore starts again.
package backup
