// Package lifecycle runs components that live together: they start in order, and stop in the reverse
// order when one of them ends or all are asked to.
package lifecycle
