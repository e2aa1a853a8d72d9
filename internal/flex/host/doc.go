// Package host finds the FlexVolume drivers of a machine.
//
// Life cycle of a Host: it ends what is left of calls of a host that was killed;
// then it watches a plugin directory, looks at what a notice is about, has each
// driver that came or changed probed, the first time at once and then a second
// after the last probe at the earliest, and tells where each one stands. A copy
// of the last version that was in order is kept, with which volumes are unmounted
// when the driver is broken or gone.
package host
