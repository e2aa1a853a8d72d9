// Package doctor examines a FlexVolume driver: it calls the executable as a host
// would, and as no host should, with real mounts in a scratch directory, and says
// what it does that a host cannot live with.
//
// Life cycle of an examination: what others left that were killed is taken away;
// a scratch directory of the shape that drivers rely on is made, and locked for
// as long as this process lives; init, then the operations of a volume's life are
// called, each check on its own volume, one of which is made larger at last if
// that was asked for; what all calls have in common (one answer, nothing on
// standard error, no secret in any output, nobody who keeps the pipe) is judged at
// the end; then, also when it was interrupted, the driver is asked to undo what it
// has done, its processes are ended, what is mounted in the scratch directory is
// unmounted and that is removed. Nothing outside of it is touched by anybody but
// the driver; what that does elsewhere is not looked at, because others mount and
// unmount on the same host.
package doctor
