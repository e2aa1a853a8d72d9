// Package capacity decides what CSIStorageCapacity objects there are and what
// they say, and whether a node has room for a claim by what they say.
//
// Life cycle of an object: each segment of a driver's nodes and each class of
// the driver whose claims wait for a node make an Item; Driver says which items
// there are and which objects are of no use; the driver is asked about each
// item, and Told turns its answer into an object. An object's name follows from
// its item, so that no crash makes a second one.
package capacity
