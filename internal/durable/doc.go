// Package durable writes files of which a crash leaves either the old or the new content, and reads them again without
// trusting what is in their place. Records keeps values of one kind in a directory that way: the node agent's journal
// and what the bridge knows of its volumes. Lock is what keeps a second process out.
package durable
