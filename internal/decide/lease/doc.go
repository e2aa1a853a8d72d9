// Package lease decides who holds leases, of which a process needs one or more to work.
//
// A process acquires its leases in an order that is the same everywhere, works only while it holds all of them, and
// stops when it could not renew one of them for that lease's deadline, by its own clock. The first lease is short. The
// others may be long, so that they are written rarely; each says with which first lease its holder works. It needs a
// mark that names both that lease and the holder, and docs/design/leases.md says why, and why never two processes work.
//
// Life cycle: none, it consists of functions of their arguments.
package lease
