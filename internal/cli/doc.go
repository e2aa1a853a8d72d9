// Package cli is the command line of volplane: it parses flags, talks to the
// API server like any other client, and prints for people or programs. The verbs
// are in the folders below, by topic, and this package joins them.
//
// Life cycle: for every call, Main builds the tree of commands, runs one
// command, prints an error as "error: ...", and returns the exit code. The
// caller passes long-running programs (the node agent, the driver) as Programs.
// The standalone control plane is another program, volplaned, which this
// package runs as a process.
package cli
