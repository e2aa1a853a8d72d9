// Package registration finds the CSI drivers of a node as a kubelet does: by the sockets in a
// directory, over the plugin registration API v1.
//
// Life cycle: Run scans the directory, watches it, and scans it again periodically in case a notice was
// lost. Each socket has a goroutine of its own, so a driver that hangs delays no other. A driver that
// is accepted is written to the Node's objects and added to the set of drivers; when its socket
// disappears it is removed from both. Failures are retried with a back-off.
package registration
