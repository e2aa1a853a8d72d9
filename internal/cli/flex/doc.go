// Package flex has the verbs about FlexVolume drivers: they install, list and test them, serve them as CSI drivers, and
// move their volumes.
package flex
