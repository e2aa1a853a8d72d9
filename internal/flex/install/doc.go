// Package install puts FlexVolume drivers where hosts look for them, takes them
// away, and says what is wrong with them. It works beside any host, ours or a
// kubelet, that may start the driver at any moment.
//
// Life cycle of an installation: Find names the directory and why; the driver is
// copied into a place of its own and looked at there (Check); then the copy gets
// content, owner, mode and label under a name that no host looks at, and its
// final name last, by one rename. Whoever starts the driver meanwhile, and
// whenever this process is killed, gets the whole old or the whole new version.
// The version before stays beside it for Rollback, which exchanges the two.
//
// All that is kept beside a driver VENDOR~DRIVER are files in the plugin
// directory, because a rename works within one mount only, and a container may
// have no more than this directory of its host. Their names begin with a dot, so
// that no host takes them for drivers (F-050):
//
//	.VENDOR~DRIVER.new        is being written
//	.VENDOR~DRIVER.keep       was in use until just now; becomes .previous
//	.VENDOR~DRIVER.previous   the version before, for Rollback
//	.VENDOR~DRIVER.removed    the version that was taken away while in use
package install
