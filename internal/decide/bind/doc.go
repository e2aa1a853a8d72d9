// Package bind decides which volume a claim is bound to, what is written to
// make the link, and what becomes of a volume whose claim has gone. It works on
// its arguments only; a plan holds the objects as they are to be written, in
// order, each write safe to repeat.
package bind
