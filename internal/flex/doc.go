// Package flex is the entry to everything about FlexVolume drivers, which are executables that
// attach and mount volumes. No other package knows of FlexVolume. Bridge discovers the drivers of a
// host and serves them as CSI drivers; Install, Upgrade, Rollback, Uninstall and Keep change which
// drivers are installed; List and Lint inspect them; Examine tests one.
//
// Life cycle of a Bridge: it runs until its context ends. Volumes stay mounted then, and the next
// one continues from the records on disk. The other functions keep no resources when they have
// returned.
package flex
