// Package fix suggests commands that would solve a problem, each with its risk.
//
// Life cycle: Remedies chooses them by the reason of a chain's answer, and Render writes them as text.
// Nothing here runs a command.
package fix
