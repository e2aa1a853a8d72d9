// Package topology decides where a new volume has to be reachable: which
// segments the driver must choose from, in which order, and which nodes a
// volume's answer allows.
package topology
