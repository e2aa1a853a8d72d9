// Package lease finds out from their Leases whether the programs that have to act next are alive.
//
// Life cycle: Read indexes the Leases, and Follow adds to the links of each chain what the Leases say about the
// programs that they wait for.
package lease
