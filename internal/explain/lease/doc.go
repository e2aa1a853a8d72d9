// Package lease judges by their Leases whether the programs live that have to act next.
//
// Life cycle: Read puts the Leases in order, and Follow adds to the links of each chain what is said of those who are
// waited for.
package lease
