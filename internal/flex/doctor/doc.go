// Package doctor examines a FlexVolume driver: it calls the executable as hosts do, and in ways
// that hosts should not, with real mounts in a scratch directory, and reports behaviour that hosts
// cannot handle.
//
// A check fails for what breaks Kubernetes' own host or volplane's, and for what loses data or a
// secret; it says which of the two. Matters of form are warnings, and what no host calls is never
// more than that. The table of all checks is in docs/flex.md.
//
// Life cycle of an examination: what killed examinations have left is removed. A scratch directory
// with the layout that drivers rely on is created, and locked while this process lives. Then init
// and the operations of a volume's life are called, each check with its own volume; one volume is
// expanded at the end if that was requested. What all calls have in common (one answer, nothing on
// standard error, no secret in the output, no process that keeps the pipe open) is judged at the
// end. Finally, also after an interruption, the driver is asked to undo what it has done, its
// processes are killed, what is mounted in the scratch directory is unmounted, and the directory is
// removed. Only the driver changes anything outside of it; that is not examined, because others
// mount and unmount on the same host.
package doctor
