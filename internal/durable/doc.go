// Package durable writes files so that a crash leaves either the old or the new content, and reads
// them without trusting the content. Records keeps values of one kind in a directory that way, for
// example the node agent's journal and the bridge's volumes. Lock keeps a second process out.
package durable
