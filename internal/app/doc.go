// Package app joins the parts: which controllers there are, which rights each
// has, in which order the parts of a role start, and what runs until when.
//
// Life cycle: a role's function (ControlPlane, Node, LocalDriver) starts its
// parts in the order of the list it holds, returns when its context ends or
// one part fails, and by then has stopped its parts in the reverse order.
package app
