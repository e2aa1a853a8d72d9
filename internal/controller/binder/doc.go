// Package binder binds claims to volumes, asks provisioners for volumes that do
// not exist, and marks volumes whose claims have gone.
package binder
