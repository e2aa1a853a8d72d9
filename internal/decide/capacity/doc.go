// Package capacity decides which CSIStorageCapacity objects exist and what they contain, and whether, according to
// them, a node has space for a claim.
//
// Life cycle of an object: each pair of a topology segment of a driver's nodes and a class of the driver with late
// binding is an Item. Driver decides which items exist and which objects are obsolete. The driver is asked about each
// item, and Told turns the answer into an object. The name of the object follows from the item, so that a crash cannot
// cause a second one.
package capacity
