// Package flex is the door of all that is about FlexVolume drivers, executables
// that attach and mount volumes: Bridge finds those of a host and serves them as
// CSI drivers, so that nobody else knows of them; Install and what belongs to it
// put them in their place, List and Lint look at them, and Examine tries one.
//
// Life cycle of a Bridge: it runs until its context ends, volumes stay mounted,
// and what it has written is found by the next one. The other functions hold
// nothing when they have returned.
package flex
