// Package progress waits for work that may take long on a slow host, and gives up when there is no progress.
package progress
