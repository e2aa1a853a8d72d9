// Package progress waits for work that may take long on a slow host, and gives up when
// the work makes no progress.
package progress
