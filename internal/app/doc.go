// Package app assembles the programs from their parts: it lists the controllers,
// their rights, and the order in which the parts of a role start and stop.
//
// Life cycle: a role's function (ControlPlane, Node, LocalDriver) starts its
// parts in the order of a list. When its context ends or one part fails, it stops
// its parts in the reverse order and returns.
package app
