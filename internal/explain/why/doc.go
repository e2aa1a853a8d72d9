// Package why walks from a claim, a volume, an attachment, a snapshot or a Pod along the chain that ends at a mounted
// path, and calls for each link the decision functions that the controllers use: whether it holds, why not, and who
// acts next.
//
// Life cycle: Of creates a Walk from what was read, and each of its methods explains one object. Nothing here
// reads a cluster or changes anything, so an explanation may be repeated at will.
package why
