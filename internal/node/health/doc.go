// Package health knows how the mounted volumes of a node are: how full, whether they
// still take writes, and what their drivers say is wrong with them.
//
// Life cycle: New makes a Monitor; Run looks at the volumes of the journal now and
// then, and tells their Pods and claims of what has changed, until its context ends.
package health
