// Package scratch makes the directories in which drivers are tried out, and takes them away with all that a driver has
// left in them: processes, mounts, loop devices and files.
//
// A directory is locked while the process lives that has made it. The kernel ends the lock with the process, however
// that ends, so an unlocked directory is that of a killed examination, and the next one takes it away.
package scratch
