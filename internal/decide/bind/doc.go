// Package bind decides which volume a claim is bound to, which writes bind them, and what happens to
// a volume whose claim was deleted. A plan has the objects to write, in order; each write is safe to
// repeat.
package bind
