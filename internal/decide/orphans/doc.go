// Package orphans decides which volumes of a driver have no object and which
// objects have no volume, and with which objects a volume is taken in again.
package orphans
