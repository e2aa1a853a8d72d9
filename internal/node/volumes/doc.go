// Package volumes mounts and unmounts the volumes of a node's Pods: gather, decide/mount, apply.
//
// Life cycle: New makes Volumes from an open journal; Run processes the volumes that are added until
// its context ends. Each volume is processed by one goroutine at a time. Volumes are independent of
// each other, and a driver that hangs delays only its own volumes. Mounts stay when Run ends.
package volumes
