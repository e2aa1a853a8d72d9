// Package queue is a work queue: it processes a key soon, after a pause, after a failure with
// back-off, and when one of the limited places of a lane is free. Controllers and the node agent use
// it, each with its own Options.
//
// A key is idle, queued, processing, or dirty, which means that it was added while it was processed.
// One goroutine at a time processes it, and after each Add it is processed at least once. Goroutines
// exist only while there is work, and a key that is idle without failures takes no memory: a start
// adds every object, and afterwards most keys are idle.
package queue
