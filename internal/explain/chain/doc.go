// Package chain has the parts of an explanation: a chain of links, each an object with the result of a decision about
// it; which link is the answer; and how both are printed.
//
// Life cycle: a package that explains creates links with New and Tell and joins them to a Chain, which does not change
// after that.
package chain
