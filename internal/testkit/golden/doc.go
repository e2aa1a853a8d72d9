// Package golden compares the results of tests with golden files.
//
// Life cycle: a test calls Equal with a text, which may have the results of Change. With
// UPDATE_GOLDEN=1 in the environment, Equal writes the file instead; review the difference before
// you commit it.
package golden
