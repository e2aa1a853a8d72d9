// Package up runs the standalone control plane: the API server, the
// controllers, this host's node agent and the bundled driver, in one process
// over one data directory.
//
// Life cycle: Run opens the data directory, starts the API server, makes sure
// that the bundled driver's objects exist, starts the controllers, then the
// node agent and the driver, says that it is ready, and on the end of its
// context stops all of them in the reverse order. Mounts of running consumers
// stay; the next start finds them again.
package up
