// Package csitest tests both sides of CSI: Driver is a driver in memory, behind a real socket, that a test scripts;
// Suite tests the behaviour of a driver that volplane relies on.
//
// Life cycle of a Driver: Start serves it until the test ends. A test may kill, restart and rename
// it, and script how single calls fail; its volumes survive, as real storage does. Register
// registers it with a node agent.
package csitest
