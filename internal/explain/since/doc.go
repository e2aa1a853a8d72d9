// Package since tells since when the links of an explanation do not hold, and what is known of the tries to mend them.
//
// Life cycle: Times are made of what was read, and asked for each link.
package since
