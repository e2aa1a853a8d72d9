// Package driver calls FlexVolume drivers: executables that attach and mount
// volumes, one operation for each start.
//
// Life cycle of a driver: Probe starts it with init and keeps what it said of
// itself; then each operation is one method, which starts it once, looks at the
// mount table before and after and believes the table (H1). What a driver does
// not support is done here, as far as a host can. When the file changes, the
// Driver refuses to start it (ErrChanged): somebody has to Probe it anew.
//
// Life cycle of a call: it waits until no other call works on the same directory
// or volume, or joins one that does the same; it runs on when its asker goes
// away; it ends by itself or is killed, with its process group, at its time
// limit. What a driver leaves behind, a FUSE daemon for example, lives on, in a
// cgroup of its own where the host has cgroup v2. A call is written down while it
// runs: EndLeft ends what is left of one whose host was killed, before the next
// host calls anything.
package driver
