// Package users keeps who uses the claims of a door on this node: in an annotation of the Pod that has a claim mounted.
// What is written there is a hint, because those who use a volume are killed and forget; the kernel knows who has it.
// See package decide/volumeusers for who counts as a user.
package users
