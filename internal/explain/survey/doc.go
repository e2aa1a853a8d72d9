// Package survey explains objects on which many claims depend (a class, a driver, a node, a
// namespace), and lists all causes of waiting in a cluster.
//
// Life cycle: its functions use a Walk, which explains one object after the other. RenderCauses
// writes the causes as text.
package survey
