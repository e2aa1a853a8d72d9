// Package install installs and removes FlexVolume drivers, and reports what is wrong with them. It
// works beside any host, a bridge or a kubelet, that may start the driver at any moment.
//
// Life cycle of an installation: Find returns the directory and why it is the one. The driver is
// copied to a staging directory and checked there (Check). Then a copy with the right owner, mode
// and label is written under a name that hosts ignore, and gets its final name by one rename at the
// end. A host that starts the driver at any moment gets either the whole old or the whole new
// version, even if this process is killed. The previous version is kept for Rollback, which
// exchanges the two.
//
// Beside a driver VENDOR~DRIVER, only files in the plugin directory are kept, because a rename
// works within one mount only, and a container may see no more of its host than this directory.
// Their names begin with a dot, so that hosts do not take them for drivers (F-050):
//
//	.VENDOR~DRIVER.new        is being written
//	.VENDOR~DRIVER.keep       was in use until just now; becomes .previous
//	.VENDOR~DRIVER.previous   the version before, for Rollback
//	.VENDOR~DRIVER.removed    the version that was removed while in use
package install
