// Package driver has the verbs about CSI drivers of this host: they add, list and remove them, show, plant, record and
// replay their calls, and test them.
package driver
