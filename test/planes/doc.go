// Package planes tests several control planes over one external etcd: they are killed and stopped while claims are
// made, mounted and deleted on the nodes of the others, and nothing may be lost, left behind or done twice. TestLives
// gives each of them a network of its own, and disturbs that, too.
package planes
