// Package integration tests volplane with the real API server, which runs in the test's process: the
// controllers with a driver that the test controls, the node agent with real mounts, and the bundled
// driver with csi-sanity.
package integration
