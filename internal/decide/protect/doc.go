// Package protect decides when the protection finalizers of claims and volumes are added and removed.
package protect
