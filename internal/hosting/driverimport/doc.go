// Package driverimport turns what a vendor publishes for Kubernetes, workloads with sidecars and the objects beside
// them, into the files of drivers that a host runs without containers, and the objects that are still needed. It is a
// function of its arguments, and says what could not be taken and why.
package driverimport
