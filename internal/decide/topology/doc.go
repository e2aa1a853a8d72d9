// Package topology decides where a new volume must be accessible: from which segments the driver
// chooses, in which order, and from which nodes the created volume can be used.
package topology
