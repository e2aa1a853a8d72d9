// Package dryrun predicts what would happen to objects that do not exist yet.
//
// Life cycle: Predict returns the objects as the binder will have left them, and the caller explains those; Served
// and Refused are the answer.
package dryrun
