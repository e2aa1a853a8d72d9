// Package csi calls CSI drivers. A Driver is the driver behind one socket; a Set holds the drivers that a process
// knows.
//
// Life cycle: Dial connects, probes, and reads the driver's name and capabilities. Every call then
// passes through the same chain: a deadline, one call at a time for each volume, a check of the
// answer, and the removal of secrets from errors. A lost connection is re-established
// automatically; a driver that returns under another name is refused. OutcomeOf says whether a
// failed call may have taken effect.
package csi
