// Package host discovers the FlexVolume drivers of a machine.
//
// Life cycle of a Host: first it ends the processes of calls whose host process was killed. Then it
// watches a plugin directory, and inspects the entry that each kernel event names. A driver that
// was added or changed is probed: the first time immediately, then at most once a second.
// Subscribers get the state of each driver. A copy of the last good version is kept, which unmounts
// volumes when the driver is broken or removed.
package host
