// Package reports plays public bug reports of the storage world against a running control plane: a script for each, or
// the name of the test that plays it already.
package reports
