// Package binder binds claims to volumes, requests new volumes from provisioners, and marks volumes
// as released when their claims have been deleted.
package binder
