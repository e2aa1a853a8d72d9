// Package health observes the mounted volumes of a node: how full they are, whether they have become
// read-only, and which problems their drivers report.
//
// Life cycle: New makes a Monitor; Run inspects the volumes of the journal periodically, and records
// changes as events of their Pods and claims, until its context ends.
package health
