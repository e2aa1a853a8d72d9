// Package why explains the state of a claim, a volume, a consumer or a node:
// which link of the chain from the claim to the mounted path is the first that
// does not hold, and who acts next; or all causes of waiting in a cluster.
//
// Life cycle: the caller reads Objects; Claim, Volume, Attachment, Pod or Node
// turns them into a Chain, Causes into a list; Render and RenderCauses write
// them for people. Nothing here reads or changes anything, so an explanation
// may be repeated at will.
package why
