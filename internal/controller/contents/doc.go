// Package contents is the loop of the controllers whose drivers create and delete what contents refer to: snapshots, or
// groups of them. It decides nothing: a Kind calls the decisions and the driver, and the loop performs the resulting
// writes, records events, and repeats calls. Binding is left to the controllers that bind contents.
package contents
