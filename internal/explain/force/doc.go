// Package force tells when a volume is detached by force from a node that is not ready, and what has to happen before.
//
// Life cycle: Facts are made for one volume, and asked about each attachment that has to go.
package force
