// Package journal keeps what a node agent must know to take volumes away again
// after a crash: one file for each volume, as durable.Records.
//
// Life cycle: Open reads the directory. Put writes a record before each deed
// that the record is needed to undo, and returns when it is on the disk; Settle
// does so around deeds that take something away, which a full disk does not
// stop; Drop deletes it when nothing of the volume is left. A file that cannot
// be read is moved aside and named, never deleted; a file of a newer format
// refuses the start. The journal remembers that records may be lost until what
// they told of is found.
package journal
