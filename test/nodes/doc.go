// Package nodes tests control planes that other nodes join, whose processes are killed: the built programs on one host,
// or on three in separate network namespaces.
package nodes
