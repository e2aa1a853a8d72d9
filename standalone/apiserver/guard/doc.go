// Package guard has two admission plugins of volplane's own. One asks for more
// than the right to make Pods where a Pod could otherwise reach out of its
// namespace: for the annotation with which it asks to be mounted at a path of the
// host, which could cover any directory of any node, and for FlexVolume drivers
// that it names itself, which get its options as root. The other refuses what
// would give a user other data than asked for.
package guard
