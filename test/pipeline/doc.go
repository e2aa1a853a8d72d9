// Package pipeline tries the script that runs all tests on small modules, whose tests fail in each of the ways that
// it has to distinguish.
package pipeline
