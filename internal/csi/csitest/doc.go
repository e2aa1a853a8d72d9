// Package csitest tests the two sides of CSI: Driver is a driver in memory,
// reached over a real socket, that a test scripts; Suite is what any driver
// must do when it is used through package csi.
//
// Life cycle of a Driver: Start serves it until the test ends. In between a
// test may kill it, restart it, rename it and say how single calls go wrong;
// what it knows of volumes stays, as with storage. Register announces it to a
// node agent.
package csitest
