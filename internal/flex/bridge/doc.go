// Package bridge serves FlexVolume drivers as CSI drivers: each has its own name
// and socket, and is announced to the node agent of the host.
//
// Life cycle: Open reads what an earlier life has left under way and keeps the
// drivers that it needs. Run follows the host: it serves each driver that is
// ready, anew when what it can do has changed, and ends serving one that is gone
// and of which nothing is in use. One that is broken, or gone too early, goes on
// being served, to take away what is there.
//
// Below the root directory, which has the shape of a kubelet's because drivers
// rely on it:
//
//	pods/UID/volumes/VENDOR~DRIVER/NAME                         where a driver mounts
//	plugins/kubernetes.io/flexvolume/VENDOR/DRIVER/mounts/ID    where it mounts devices
//	lock                                                        held while a bridge runs
//	state/volumes/CSI/KIND/HASH.json                            a record each
//
// From there a volume is bound to its target; nothing is mounted at staging paths. Before each effect a
// record says that it may be there, so that a later life takes it away; what is
// mounted is asked of the kernel. No record holds a secret.
//
// A call is as slow as the driver. It goes on when its caller has gone, and the
// same call, made again, waits for it; any other one of the same volume is
// refused meanwhile.
package bridge
