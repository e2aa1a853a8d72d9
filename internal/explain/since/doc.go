// Package since tells since when the links of an explanation do not hold.
//
// Life cycle: Times are made of what was read, and asked for each link.
package since
