// Package kubetest is what the tests of controllers share. API keeps objects as the
// API server does, a Process is one life of a controller over it, and a World is a
// bubble in which lives follow each other while the test plays everybody else.
//
// How things go wrong is said in few ways. Fate decides about each write: it is
// refused, or done without an answer, from some write on as when the process has died
// between two of them. Refuse has one kind of request fail. A conflict comes from Put,
// by which somebody else writes meanwhile, in Fate too. Silence has a watch lag for
// ever. Kill ends a life; what the next one begins with is what the API has.
package kubetest
