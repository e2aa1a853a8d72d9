// Package datadir is the directory that holds everything of a control plane
// that lasts. One process at a time has it open; it is refused, with the cause
// and the next step, when it cannot be used safely.
package datadir
