// Package datadir manages the directory with all persistent data of a control plane.
// One process at a time may open it. A directory that cannot be used safely is
// refused with the cause and the next step.
package datadir
