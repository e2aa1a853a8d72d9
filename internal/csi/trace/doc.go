// Package trace remembers the last calls of a process to CSI drivers, plants faults between the process and the
// drivers, and serves both to commands on the same host.
//
// Life cycle: New returns a Trace, whose Options are those of each connection to a driver. Serve answers a Client at a
// socket that only root may use. Nothing is written to disk: calls and faults disappear with the process.
package trace
