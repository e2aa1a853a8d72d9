// Package tree has files in memory, which become an archive, a layer of an image or a package. The same files make the
// same bytes: the order, owners and times do not depend on the machine.
package tree
