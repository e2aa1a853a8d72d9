// Package cli is the command line of volplane: it parses flags, talks to the
// API server like any other client, and prints for people or programs.
//
// Life cycle: Main builds the tree of commands anew for every call, runs one
// command, prints what went wrong as "error: ...", and returns the exit code.
// What runs for long (the node agent, the driver) is handed in as Programs;
// what belongs to the standalone control plane is the other program,
// volplaned, and is started as a process.
package cli
