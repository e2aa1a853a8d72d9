// Package migrate decides how one volume leaves its in-tree Flex plugin for the
// CSI driver that the bridge serves of the same Flex driver, and the way back.
//
// The source of a PersistentVolume cannot be changed, so that both objects, of
// volume and claim, are saved, deleted and made anew under their old names. The
// data is never touched. Life cycle: whoever migrates gathers Facts, asks Next,
// does the one step of the answer, and asks again, until the answer is that all
// is done, or why it cannot be. Next remembers nothing: whoever was killed
// between two steps goes on with the same question.
package migrate
