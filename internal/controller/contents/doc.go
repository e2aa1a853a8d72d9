// Package contents is the loop of the controllers that have drivers take and delete what contents stand for: snapshots,
// or groups of them. It decides nothing: a Kind asks the decisions and calls the driver, and the loop writes what they
// want, records it as events, and repeats calls. Binding is for the controllers that bind contents.
package contents
