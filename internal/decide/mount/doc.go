// Package mount decides what a node agent does next with one volume: mark it in use, stage, publish, bind, grow, and
// the reverse of these steps.
//
// Life cycle: the agent gathers Facts about one volume (who wants it, what its
// journal record says, what the mount table shows, whether it is attached),
// asks Volume for a Plan, and carries the actions out in order until one
// fails. Nothing here reads a mount table or calls a driver.
package mount
