// Package spec holds the requirements that volplane follows, and where each of
// them is proved.
//
// Life cycle: requirements.tsv has one line for each requirement. Whoever
// changes how a requirement is met changes its line; the tests hold the table
// against the code.
package spec
