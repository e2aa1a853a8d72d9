// Package protection keeps claims that Pods use, and volumes that claims are bound to, from being deleted: it removes
// their protection finalizers when they are no longer used. The API server adds the finalizers to new objects; this
// controller adds them where they are missing.
package protection
