// Package health decides what the API shows about the health of volumes and of the storage behind them (KEP-1432).
//
// A driver's words are bounded, and brought into the form that the API demands, before they come into an object.
package health
