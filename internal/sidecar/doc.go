// Package sidecar has the interface of upstream's sidecars: their names, their flags with types and defaults, and the
// effect of each flag here. One table is the only place that knows a flag. A process that is started under a sidecar's
// name, the flags of "volplane controller", and the page that compares them are views of it.
package sidecar
