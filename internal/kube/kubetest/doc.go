// Package kubetest is what the tests of controllers share. API keeps objects as the API server does, a Process is one
// run of a controller with it, and a World is a bubble in which runs follow each other while the test plays all other
// clients.
//
// There are a few ways to inject failures. Fate decides about each write: it is refused, or done without an answer;
// from some write on, that looks as if the process had died between two of them. Refuse makes one kind of request fail.
// A conflict comes from Put, with which another client writes concurrently, also within Fate. Silence makes a watch lag
// forever. Kill ends a process; the next one begins with what the API has.
package kubetest
