// Package queue decides when a key is processed: soon, after a pause, after a
// failure with a growing pause, and when one of the limited places of a lane is
// free. Controllers and the node agent use it, each with its own policy.
//
// A key is idle, queued, processing, or dirty, which means processing and added
// meanwhile. It is processed by one goroutine at a time, and what was added is
// processed at least once afterwards. Goroutines exist only while there is
// work, and what is remembered of a key ends when it is idle without failures:
// controllers rest most of the time, after a start that adds every object.
package queue
