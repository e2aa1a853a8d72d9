// Package doctor examines a CSI driver: it calls the driver as hosts and clusters do, and in ways that they should not,
// with real mounts in a scratch directory, kills it in the middle of calls if it has started it, and reports behaviour
// that callers cannot handle.
//
// Life cycle of an examination: what killed examinations have left is taken away (package scratch). A scratch directory
// is made, and the driver started if it is not running. Then the checks of the table in checks.go are made, one after
// the other, each with volumes of its own or with the shared one, which is brought to where the check needs it; what a
// check has made is taken back after it. What all calls have in common (no secret in what the driver says, limits of
// sizes, readable errors) is judged at the end.
// Finally, also after an interruption, every volume is unpublished, unstaged, detached and deleted, the driver is
// ended, what is still mounted in the scratch directory is unmounted, and the directory is removed.
//
// A check returns one verdict. What a check needs and cannot have because another call fails is no fault of its own: it
// then says with a warning that it was not made, and the check of that other call fails.
//
// Calls go through package csi, so the driver is called as volplane calls it. What csi would hide or refuse, a witness
// sees before: see witness.go. testdata/sanity.txt says which check contains each case of csi-sanity.
package doctor
