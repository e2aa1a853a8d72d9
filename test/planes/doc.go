// Package planes tests several control planes over one external etcd: they are killed and stopped while claims are
// created, mounted and deleted on the nodes of the others, and nothing may be lost, left behind or done twice.
// TestLives gives each of them its own network, and disturbs that, too.
package planes
