// Package tools extracts from Debian packages what the bundled driver and the node agent start: the programs that make,
// check, grow and mount filesystems, and the libraries that these load. No program of another architecture is run, and
// the machine's own package database is not changed.
package tools
