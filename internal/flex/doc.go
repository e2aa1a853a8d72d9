// Package flex is the bridge as a part of a host: it discovers the FlexVolume drivers of the host, which
// are executables that attach and mount volumes, serves them as CSI drivers, and writes their state to
// the API server. What installs, lists and examines drivers is in the packages below.
//
// Life cycle of a Bridge: it runs until its context ends. Volumes stay mounted then, and the next
// one continues from the records on disk.
package flex
