// Package up runs the standalone control plane in one process: the API server, the
// controllers, this host's node agent and the bundled driver, with one data
// directory.
//
// Life cycle: Run opens the data directory, starts the API server, ensures that the
// bundled driver's objects exist, starts the controllers, the driver and the node
// agent, and reports that it is ready. When its context ends, it stops all of them in
// the reverse order. Mounts of Pods stay, and the next start takes them over.
package up
