// Package progress waits for what may take long on a slow host: as long as
// anything moves, and no longer.
package progress
