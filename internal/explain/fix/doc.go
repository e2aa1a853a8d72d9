// Package fix knows commands that would free what waits, and what each risks.
//
// Life cycle: Remedies are chosen by the reason of a chain's answer, and Render writes them for people. Nothing here
// carries one out.
package fix
