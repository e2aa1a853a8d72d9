// Package journal stores the records that a node agent needs to unmount volumes after a crash: one file
// for each volume, as durable.Records.
//
// Life cycle: Open reads the directory. Put writes a record before each step that the record is needed
// to undo, and returns when it is on the disk; Settle does the same around unmounts, and succeeds on a
// full disk; Drop deletes a record when nothing of the volume is left. A file that cannot be read is
// moved to quarantine if possible, and reported, never deleted; with a file of a newer format Open fails. The journal
// remembers that records may be lost until they have been rebuilt.
package journal
