// Package dryrun foretells what becomes of objects that are not there yet.
//
// Life cycle: Foretell returns the objects as the binder will have left them, and whoever asked explains those; Served
// and Refused are the answer.
package dryrun
