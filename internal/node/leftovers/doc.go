// Package leftovers finds the volumes that are on a node and not in its journal:
// records were lost, or are old.
//
// Life cycle: Rebuild works once, when the agent starts, before it mounts anything.
package leftovers
