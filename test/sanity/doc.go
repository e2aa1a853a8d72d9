// Package sanity plays csi-sanity against the bridge, with a script behind it: a process can play it only once, and
// package integration does so for the bundled driver.
package sanity
