// Package backup saves what a control plane cannot make again, its objects and
// its keys, to one file, and makes a data directory of such a file.
//
// The file is a compressed tar archive: the files of the data directory as they
// were, a snapshot of etcd, and at the end a manifest with the sum of each. It
// holds every Secret and the keys of everybody, and is for its owner only.
//
// Life cycle: a file is written beside its name and gets it when it is whole and
// on the disk. A restore makes everything in a folder of its own first and then
// exchanges whole folders; what was there before is kept. A crash at any moment
// leaves something that the next backup or restore begins anew.
package backup
