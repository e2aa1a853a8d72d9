// Package golden compares the results of tests with golden files.
//
// Life cycle: a test calls Equal with a text, which may have the results of Change. If its facts are words, they are in
// the file as well: Play and Steps read them there, and Read sets the fields of a struct. With UPDATE_GOLDEN=1 in the
// environment, the file is written instead; review the difference before you commit it.
package golden
