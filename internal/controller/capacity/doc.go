// Package capacity maintains CSIStorageCapacity objects, in which schedulers read how much storage
// the drivers have where.
//
// Life cycle: the key of a driver determines its items, each a class and a segment of the topology,
// and deletes objects without an item. The key of an item calls GetCapacity, writes the object if
// the answer has changed, and is requeued after an interval, because a driver's storage cannot be
// watched. One call per driver is in flight at a time.
package capacity
