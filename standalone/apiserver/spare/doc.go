// Package spare is the admission plugin that keeps room: for deletions, when the
// database or its disk is nearly full, so that what ends others can still be
// written, and for others, when a namespace has many large objects.
package spare
