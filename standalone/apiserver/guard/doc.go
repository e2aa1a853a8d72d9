// Package guard has two admission plugins of volplane's own. One requires additional
// rights for a Pod that affects more than its namespace: with the annotation that
// requests a mount at a path of the host, which could cover any directory of any
// node, or with a FlexVolume driver, which runs as root with the Pod's options. The
// other refuses objects that would give a user other data than requested.
package guard
