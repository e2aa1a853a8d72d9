// Package csi speaks to CSI drivers: one Driver for each socket, asked once
// what it is and can do, and a Set of those that a process knows.
//
// Life cycle: Dial connects, probes, and reads name and capabilities. Every
// call then goes through the same chain: a deadline, one call at a time for
// each volume, a check of the answer, and errors without secrets. A connection
// that is lost is made again by itself; a driver that comes back under another
// name is refused. OutcomeOf says what an error means for the world.
package csi
