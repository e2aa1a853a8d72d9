// Package spec holds the requirements that volplane follows, and where each of
// them is proved.
//
// Life cycle: requirements.tsv has one line for each requirement. A change of how a
// requirement is met also changes its line; the tests compare the table with the code.
package spec
