// Package since finds out since when the links of an explanation do not hold, and what is known about the attempts to
// fix them.
//
// Life cycle: Times are created from what was read, and queried for each link.
package since
