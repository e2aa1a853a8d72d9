// Package registration finds the CSI drivers of a node as a kubelet does: by
// the sockets in a directory, over the plugin registration API v1.
//
// Life cycle: Run scans the directory, follows it, and scans it again now and
// then in case a notice was lost. Each socket has a goroutine of its own, so a
// driver that hangs delays nobody. A driver that answers well is written to the
// Node's objects, put into the set of drivers, and told so; when its socket
// goes away both are taken back. Failures are retried with growing pauses.
package registration
