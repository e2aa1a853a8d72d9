// Package orphans decides which volumes of a driver have no object, which objects have no volume,
// and with which objects a volume is adopted.
package orphans
