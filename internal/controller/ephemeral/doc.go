// Package ephemeral makes the claims of generic ephemeral volumes, and deletes
// those whose Pods are gone.
//
// Life cycle: a Pod's key makes what is missing; a claim's key looks whether
// the Pod that it was made for is still there, and asks the API server before it
// deletes anything.
package ephemeral
