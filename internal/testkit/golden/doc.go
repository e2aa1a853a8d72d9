// Package golden compares what tests get with files that people have read.
//
// Life cycle: a test calls Equal with its text, into which Change writes what
// becomes of objects; with UPDATE_GOLDEN=1 in the environment the file is
// written anew instead, and its difference is read before it is committed.
package golden
