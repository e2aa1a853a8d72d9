// Package spare is the admission plugin that keeps room: for deletions, and for writes that lead to them, when the
// database or its disk is nearly full, and for other namespaces, when one has many large objects.
package spare
