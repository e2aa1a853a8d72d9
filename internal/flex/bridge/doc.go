// Package bridge serves FlexVolume drivers as CSI drivers: each has its own name and socket, and is
// registered with the node agent of the host.
//
// Life cycle: Open reads the records of earlier bridges and keeps the drivers that they need. Run
// follows the Host: it serves each driver that is ready, restarts the server when its
// capabilities have changed, and stops serving a driver that was removed once no volume uses it.
// A driver that is broken, or was removed too early, is still served for unmounting and
// detaching.
//
// The root directory has the layout of a kubelet's, because drivers rely on it:
//
//	pods/UID/volumes/VENDOR~DRIVER/NAME                         where a driver mounts
//	plugins/kubernetes.io/flexvolume/VENDOR/DRIVER/mounts/ID    where it mounts devices
//	lock                                                        held while a bridge runs
//	state/volumes/CSI/KIND/HASH.json                            a record each
//
// From there a volume is bind-mounted at its target; nothing is mounted at staging paths. Before
// each step with an effect, a record says that the effect may exist, so that a later bridge can
// undo it; what is mounted is read from the kernel. No record holds a secret.
//
// A call takes as long as the driver does. It continues after its caller has disconnected; a
// repeated identical call waits for it; other calls for the same volume are refused while it
// runs.
package bridge
