// Package survey explains what many claims depend on (a class, a driver, a node, a namespace) by the answers about each
// of them, and all causes of waiting in a cluster.
//
// Life cycle: it is given a Walk, which it asks about one object after the other. RenderCauses writes for people.
package survey
