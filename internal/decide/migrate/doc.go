// Package migrate decides how one volume moves from its in-tree Flex plugin to the CSI driver as which the bridge
// serves the same Flex driver, and back.
//
// The source of a PersistentVolume is immutable, so both objects, volume and claim, are saved,
// deleted and created again under their old names. The data is never touched. Life cycle: the caller
// gathers Facts, calls Next, does the one step of the answer, and repeats that until the answer is
// that all is done, or why it cannot be. Next has no memory: after a crash between two steps, the
// caller just calls it again.
package migrate
