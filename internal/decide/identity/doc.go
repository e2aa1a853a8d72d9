// Package identity decides who is let in as a node: whether an invitation and a
// certificate still count, and when a node asks for its next certificate. How
// nodes and the API server speak about that is here, too.
package identity
