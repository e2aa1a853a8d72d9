// Package why explains the state of a claim, a volume or a consumer: which
// link of the chain from the claim to the mounted path is the first that does
// not hold, and who acts next.
//
// Life cycle: the caller gathers Facts with plain reads, Explain turns them
// into a Chain, and Render writes the chain for people. Nothing here reads or
// changes anything, so an explanation may be repeated at will.
package why
