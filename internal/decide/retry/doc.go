// Package retry says what is known of a call that failed and is repeated: which attempt it was, and when the next one
// begins. Whoever repeats the call writes that on the event of the failure, and whoever explains reads it there.
//
// Life cycle: none, it consists of functions of their arguments.
package retry
