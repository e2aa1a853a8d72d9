// Package servers lends API servers to the tests of a package. An API server takes a second of processor
// time to start and a second to stop, so it is emptied after a test and lent to the next one.
package servers
