// Package driver calls FlexVolume drivers: executables that attach and mount volumes, one operation
// at each start.
//
// Life cycle of a driver: Probe starts it with init and keeps its capabilities. Each method starts
// it once for one operation, and compares the mount table before and after: the table counts, not
// the driver's answer (H1). What a driver does not support is done here, as far as a host can. If
// the file has changed, the Driver refuses to start it (ErrChanged): it must be probed again.
//
// Life cycle of a call: it waits for other calls for the same directory or volume, or joins an
// identical one. It continues when its caller stops waiting, and ends by itself or is killed, with
// its process group, at its time limit. Processes that it leaves running, a FUSE daemon for
// example, survive in a cgroup of their own if the host has cgroup v2. A trace file records the
// call while it runs: if the host process was killed, EndLeft of the next one ends the call's
// processes before any other call.
package driver
