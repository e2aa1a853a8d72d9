// Package sanity plays csi-sanity against the bridge, with a script behind it:
// a process can play it once, and that of package integration is the bundled
// driver's.
package sanity
