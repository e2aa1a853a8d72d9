// Package why walks from a claim, a volume, an attachment, a snapshot or a Pod along the chain that ends at a mounted
// path, and asks the decisions that act about each link: whether it holds, why not, and who acts next.
//
// Life cycle: Of makes a Walk of what was read, and each of its methods explains one object. Nothing here reads a
// cluster or changes anything, so an explanation may be repeated at will.
package why
