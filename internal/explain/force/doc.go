// Package force explains when a volume is detached by force from a node that is not ready.
//
// Life cycle: Facts are created for one volume, and Detach is called for each of its attachments that
// must be deleted.
package force
