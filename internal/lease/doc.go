// Package lease elects who works: a process that is a candidate for leases works while it holds all of them. The leases
// have the names of those that the CSI sidecars hold for the same work, so that a sidecar and this process never call a
// driver at the same time. What a candidate does about a lease is decided in package decide/lease.
//
// Life cycle: Candidate.Run acquires the leases, calls its work while it holds them, and gives them back after the work
// has ended. Drivers runs a candidate for each driver that a process reaches. Others looks for those that hold leases
// where this process is no candidate.
package lease
