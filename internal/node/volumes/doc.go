// Package volumes brings volumes to the Pods of a node and takes them away: gather,
// decide/mount, apply.
//
// Life cycle: New makes Volumes over a journal that is open; Run works on those that
// are added until its context ends. One volume is worked on by one goroutine at a time;
// volumes are independent of each other, and a driver that hangs holds up its own
// volumes only. Mounts stay when Run ends.
package volumes
