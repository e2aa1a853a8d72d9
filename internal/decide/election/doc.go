// Package election decides who holds the leases of a driver, one or more of which a process needs to work.
//
// A process acquires its leases in an order that is the same everywhere, works only while it holds all of them, and
// stops when it could not renew one of them for that lease's deadline, by its own clock. The first lease is short. The
// others may be long, and are then rarely written; each names the first lease with which its holder works.
//
// Why never two work. Take a lease L that process A needs, and any other process B that wants it, be it of this package
// or of client-go. B may write L in three cases.
//
//  1. L has no holder. A has given it back, which it does after its work has ended, or a user has deleted it: then A
//     sees that, and stops if it cannot create it again.
//  2. B has not seen L change for the duration that L records. A has begun its last renewal before B saw it, and its
//     deadline is shorter than that duration, so A has stopped. Only durations are compared, never two clocks.
//  3. L says that its holder A works only with lease S, and B has read L while it held S itself. Only one process
//     holds S, by 1 and 2, so A did not work at that moment. Before A works again it acquires S again, later than B
//     read L, and after that it writes L. Each write names the version that was read. So either A has not written L
//     yet, and B takes it; or A has, and B's write fails, however long B was suspended between the two.
//
// The third case needs a mark that names both the lease and the holder. An equal holder is not enough: upstream's
// sidecars of one Pod have the same name, that of the Pod, and each works with one lease. Nor is the mark alone:
// client-go keeps the annotations of the lease that it takes.
//
// Life cycle: none; these are pure functions.
package election
