// Package flex tests FlexVolume drivers with the built programs: the examples, their installation, and their life in a
// control plane.
package flex
