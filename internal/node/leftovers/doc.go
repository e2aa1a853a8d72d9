// Package leftovers finds the volumes that are on a node but not in its journal, because records were
// lost or are old.
//
// Life cycle: Rebuild runs once, when the agent starts, before it mounts anything. UnknownMounts
// reports, while the agent runs, the mounts that no record explains.
package leftovers
