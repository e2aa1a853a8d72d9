// Package capacity keeps CSIStorageCapacity objects: what drivers say of how
// much room there is, for those who choose nodes.
//
// Life cycle: a driver's key finds out what it is to be asked about, and does
// away with objects of no use. Each such item has a key of its own, which asks,
// writes what is new, and comes back after a while, for a driver's storage
// cannot be watched. One call of a driver is under way at a time.
package capacity
