// Package integration tests whole parts against the real thing: the bundled
// driver against csi-sanity with real mounts, the controllers and the node
// agent against the API server in the test's process.
package integration
