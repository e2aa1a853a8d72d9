// Package check inspects the executable of a driver without a volume: its file, whether this host
// can start it, and its answers to init and to an operation that does not exist. Nothing is mounted
// or attached.
package check
