// Package supervise starts programs and keeps them running. The programs outlive this process: the next
// supervisor adopts them. It knows processes, files and cgroups, and nothing about what the programs do.
//
// A program is started through a gate: a process of this executable that waits for a word before it becomes the
// program. So the record names the process before the program runs, and a supervisor that is killed at any moment
// leaves neither an unknown process nor a second one. docs/design/processes.md says why it is so.
package supervise
