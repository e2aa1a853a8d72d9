// Package trace remembers the last calls of a process to CSI drivers, plants faults between the process and the
// drivers, and serves both to commands on the same host.
//
// Life cycle: New returns a Trace, whose Options are those of each connection to a driver. Serve answers at a socket
// that only root may use, and a Client asks there. Nothing of it is on a disk: with the process, calls and faults are
// gone.
package trace
