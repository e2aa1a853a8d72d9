// Package ephemeral creates the claims of generic ephemeral volumes, and deletes those whose Pods
// have been deleted.
//
// Life cycle: the key of a Pod creates missing claims. The key of a claim checks whether the Pod
// that owns it still exists, at last at the API server, and deletes the claim if it does not.
package ephemeral
